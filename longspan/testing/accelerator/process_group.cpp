#include "longspan/testing/accelerator/process_group.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/ranges.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

#include "longspan/testing/accelerator/accelerator.h"
#include "longspan/testing/accelerator/tensors.h"

namespace longspan::testing::accelerator {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Carried = std::vector<WorkPtr>;

class StreamWork : public c10d::Work {
 public:
  StreamWork(int rank, Clock clock, int device, bool blocks_host)
      : Work(rank), clock_(std::move(clock)), device_(device), blocks_host_(blocks_host) {}

  bool wait(std::chrono::milliseconds /*timeout*/) override {
    synchronize();
    return true;
  }
  void synchronize() override {
    Machine::get().put_after(current_stream(device_), clock_);
    if (blocks_host_) Machine::get().wait_on_host(clock_, "barrier");
  }
  bool isCompleted() override {
    if (!was_asked_ && !Machine::get().host_is_past(clock_)) {
      was_asked_ = true;
      return false;
    }
    Machine::get().host_sees(clock_);
    return true;
  }
  bool isSuccess() const override { return true; }

 private:
  Clock clock_;
  int device_;
  bool blocks_host_, was_asked_ = false;
};

/// Sums this rank's parts of all ranks as a ring does: from the next rank's part to the own one.
class RingSum : public c10d::Work {
 public:
  RingSum(WorkPtr exchange, at::Tensor parts, at::Tensor output, int rank)
      : exchange_(std::move(exchange)),
        parts_(std::move(parts)),
        output_(std::move(output)),
        rank_(rank) {}

  bool wait(std::chrono::milliseconds timeout) override {
    exchange_->wait(timeout);
    const int64_t num_ranks = parts_.size(0);
    at::Tensor sum = parts_[(rank_ + 1) % num_ranks].clone();
    for (int64_t i = 2; i <= num_ranks; ++i) sum.add_(parts_[(rank_ + i) % num_ranks]);
    output_.copy_(sum.view_as(output_));
    return true;
  }

 private:
  WorkPtr exchange_;
  at::Tensor parts_, output_;
  int rank_;
};

/// The messages of one launch.
struct Collective {
  std::string name;
  Tensors inputs, outputs;
  /// Starts it with the corresponding CPU tensors.
  std::function<Carried(Tensors& inputs, Tensors& outputs)> start;
};

class StreamGroup : public c10d::Backend {
 public:
  StreamGroup(c10::intrusive_ptr<c10d::Backend> carrier, c10::intrusive_ptr<c10d::Store> store)
      : Backend(carrier->getRank(), carrier->getSize()),
        carrier_(std::move(carrier)),
        store_(c10::make_intrusive<c10d::PrefixStore>("order", std::move(store))),
        device_(current_device()) {
    // A stream of its own.
    static std::atomic<int64_t> next{1000};
    stream_ = Machine::get().stream(device_, next++);
  }

  ~StreamGroup() override {
    try {
      shutdown();
    } catch (const std::exception&) {  // a dead peer, which is reported elsewhere
    }
  }

  const std::string getBackendName() const override { return "simulated"; }
  bool supportsCoalescing() const override { return true; }

  void shutdown() override { Machine::get().host_sees(Machine::get().behind(stream_)); }

  void startCoalescing() override { coalesced_ = std::make_unique<Collective>(); }

  WorkPtr endCoalescing() override {
    const std::unique_ptr<Collective> all = std::move(coalesced_);
    if (all == nullptr || parts_.empty()) return {};
    all->name = "messages";
    all->start = [parts = std::exchange(parts_, {})](Tensors& inputs, Tensors& outputs) {
      Carried works;
      size_t sent = 0, received = 0;
      for (const Message& message : parts) {
        Tensors one{message.sends ? inputs[sent++] : outputs[received++]};
        works.push_back(message.start(one));
      }
      return works;
    };
    return launch(*all);
  }

  WorkPtr send(std::vector<at::Tensor>& tensors, int peer, int /*tag*/) override {
    const int tag = num_sent_[peer]++;
    return add_message(
        {true, [this, peer, tag](Tensors& x) { return carrier_->send(x, peer, tag); }}, "send",
        tensors.at(0));
  }

  WorkPtr recv(std::vector<at::Tensor>& tensors, int peer, int /*tag*/) override {
    const int tag = num_received_[peer]++;
    return add_message(
        {false, [this, peer, tag](Tensors& x) { return carrier_->recv(x, peer, tag); }}, "recv",
        tensors.at(0));
  }

  WorkPtr allreduce(std::vector<at::Tensor>& tensors,
                    const c10d::AllreduceOptions& options) override {
    require_order("allreduce", tensors.at(0), /*alike=*/true);
    return launch({"allreduce", {}, tensors, [this, options](Tensors&, Tensors& outputs) {
                     return Carried{carrier_->allreduce(outputs, options)};
                   }});
  }

  WorkPtr broadcast(std::vector<at::Tensor>& tensors,
                    const c10d::BroadcastOptions& options) override {
    require_order("broadcast", tensors.at(0), /*alike=*/true);
    const bool root = options.rootRank == getRank();
    const auto start = [this, options, root](Tensors& inputs, Tensors& outputs) {
      return Carried{carrier_->broadcast(root ? inputs : outputs, options)};
    };
    return launch({"broadcast", root ? tensors : Tensors{}, root ? Tensors{} : tensors, start});
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    require_order("all_gather", input, /*alike=*/true);
    return launch(
        {"all_gather", {input}, {output}, [this, options](Tensors& inputs, Tensors& outputs) {
           return Carried{carrier_->_allgather_base(outputs[0], inputs[0], options)};
         }});
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& /*options*/) override {
    require_order("reduce_scatter", input, /*alike=*/true);
    return launch({"reduce_scatter", {input}, {output}, [this](Tensors& inputs, Tensors& outputs) {
                     at::Tensor sent = inputs[0].view({getSize(), -1}),
                                parts = at::empty_like(sent);
                     std::vector<int64_t> rows(static_cast<size_t>(getSize()), 1);
                     WorkPtr exchange = carrier_->alltoall_base(parts, sent, rows, rows);
                     return Carried{c10::make_intrusive<RingSum>(
                         std::move(exchange), std::move(parts), outputs[0], getRank())};
                   }});
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& received,
                        std::vector<int64_t>& sent, const c10d::AllToAllOptions& options) override {
    require_order("all_to_all", input, /*alike=*/false);
    const auto start = [this, options, received, sent](Tensors& inputs, Tensors& outputs) mutable {
      return Carried{carrier_->alltoall_base(outputs[0], inputs[0], received, sent, options)};
    };
    return launch({"all_to_all", {input}, {output}, start});
  }

  WorkPtr barrier(const c10d::BarrierOptions& /*options*/) override {
    const at::Tensor one = at::ones({1}, at::TensorOptions().device(device()));
    require_order("barrier", one, /*alike=*/true);
    const auto start = [this](Tensors&, Tensors& outputs) {
      return Carried{carrier_->allreduce(outputs)};
    };
    return launch({"barrier", {}, {one}, start}, /*blocks_host=*/true);
  }

 private:
  struct Message {
    bool sends;
    std::function<WorkPtr(Tensors& one)> start;
  };

  at::Device device() const { return {kDeviceType, static_cast<at::DeviceIndex>(device_)}; }

  WorkPtr add_message(Message message, const char* name, const at::Tensor& x) {
    if (coalesced_ != nullptr) {
      require_fit(name, x);
      (message.sends ? coalesced_->inputs : coalesced_->outputs).push_back(x);
      parts_.push_back(std::move(message));
      return {};
    }
    const bool sends = message.sends;
    const auto start = [message = std::move(message)](Tensors& inputs, Tensors& outputs) {
      return Carried{message.start(message.sends ? inputs : outputs)};
    };
    return launch({name, sends ? Tensors{x} : Tensors{}, sends ? Tensors{} : Tensors{x}, start});
  }

  void require_fit(std::string_view name, const at::Tensor& x) const {
    if (x.device().type() != kDeviceType) {
      report(Fault::kHostTensor, fmt::format("{} gets a tensor of {}", name, x.device().str()));
    }
    if (x.device() != device() || current_device() != device_) {
      report(Fault::kWrongDevice,
             fmt::format("{} of a group of device {} gets a tensor of {}, from a thread whose "
                         "device is {}",
                         name, device_, x.device().str(), current_device()));
    }
    if (!x.is_contiguous()) {
      report(Fault::kNotContiguous, fmt::format("{} gets a tensor that is not contiguous", name));
    }
  }

  /// `alike`: shapes must be equal on all ranks.
  void require_order(const char* name, const at::Tensor& x, bool alike) {
    require_fit(name, x);
    const std::string mine =
        fmt::format("{} of {}{}", name, c10::toString(x.scalar_type()),
                    alike ? fmt::format(" [{}]", fmt::join(x.sizes(), ", ")) : "");
    const int64_t number = num_collectives_++;
    const std::vector<uint8_t> first =
        store_->compareSet(std::to_string(number), std::vector<uint8_t>{},
                           std::vector<uint8_t>(mine.begin(), mine.end()));
    const std::string others(first.begin(), first.end());
    if (others != mine) {
      report(Fault::kCollectives,
             fmt::format("collective {} of a group is {} on rank {}, and {} on "
                         "another",
                         number, mine, getRank(), others));
    }
  }

  WorkPtr launch(const Collective& collective, bool blocks_host = false) {
    Machine& machine = Machine::get();
    std::vector<Use> uses;
    KernelSide side;
    Tensors inputs, outputs;
    for (const bool writes : {false, true}) {
      for (const at::Tensor& x : writes ? collective.outputs : collective.inputs) {
        require_fit(collective.name, x);
        uses.push_back(use_of(x, writes));
        (writes ? outputs : inputs).push_back(side.of(x));
      }
    }
    machine.put_after(stream_, machine.behind(current_stream(device_)));
    const Launched launched = machine.launch(collective.name, stream_, uses);
    Carried works = collective.start(inputs, outputs);
    machine.goes_on(
        launched, uses,
        [works = std::move(works), inputs = collective.inputs, outputs = collective.outputs] {
          for (const WorkPtr& work : works) work->wait();
        });
    return c10::make_intrusive<StreamWork>(getRank(), machine.behind(stream_), device_,
                                           blocks_host);
  }

  c10::intrusive_ptr<c10d::Backend> carrier_;
  c10::intrusive_ptr<c10d::Store> store_;
  int device_, stream_ = 0;
  int64_t num_collectives_ = 0;
  std::map<int, int> num_sent_, num_received_;
  std::unique_ptr<Collective> coalesced_;
  std::vector<Message> parts_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_group(c10::intrusive_ptr<c10d::Backend> carrier,
                                             c10::intrusive_ptr<c10d::Store> store) {
  return c10::make_intrusive<StreamGroup>(std::move(carrier), std::move(store));
}

}  // namespace longspan::testing::accelerator
