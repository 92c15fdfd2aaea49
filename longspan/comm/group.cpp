#include "longspan/comm/group.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "longspan/comm/backend.h"
#include "longspan/comm/backend_calls.h"
#include "longspan/comm/link.h"
#include "longspan/memory/transfer.h"
#include "longspan/rendezvous/communication_error.h"

namespace longspan {
namespace {

Pending done(std::vector<at::Tensor> tensors) {
  return Pending([tensors = std::move(tensors)] { return tensors; });
}

}  // namespace

class Group::Impl {
 public:
  Impl(c10::intrusive_ptr<c10d::Backend> backend, std::string name, const LinkTraits& link,
       CollectiveCounts::Counter counter)
      : counter_(counter ? std::move(counter) : std::make_shared<GroupCounter>()),
        backend_(std::move(backend)),
        name_(std::move(name)),
        link_(link),
        rank_(backend_->getRank()),
        size_(backend_->getSize()) {}

  // Leaks a backend whose destructor would wait for its peers, unless it was shut down before.
  ~Impl() {
    if (link_.ends_with_peers && !is_shut_down_) static_cast<void>(backend_.release());
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Returns the tensor that the backend sends: x, or a copy of it on the link's device.
  at::Tensor outgoing(const at::Tensor& x) const { return link_.copies ? x.to(link_.device()) : x; }
  /// Returns the tensor into which the backend writes x: x itself, or another.
  at::Tensor incoming(const at::Tensor& x) const {
    return link_.copies ? at::empty(x.sizes(), x.options().device(link_.device())) : x;
  }

  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  // Runs the start or the end of a collective. Turns any exception of the backend into a
  // CommunicationError.
  template <typename Step>
  auto guarded(const char* collective, Step step) -> decltype(step()) {
    try {
      return step();
    } catch (const std::exception& error) {
      const std::string what = fmt::format("Rank {} of {} of the {} group: {} did not finish: {}.",
                                           rank_, size_, name_, collective, link_.reason_of(error));
      const CommunicationError failed(
          link_.waits_for_none
              ? fmt::format("{} {}", what, kNcclSaysMore)
              : fmt::format("{} Another rank has ended, or the network failed, or a rank took "
                            "longer than ddp_timeout.",
                            what),
          /*from_library=*/link_.waits_for_none);
      if (link_.on_error != nullptr) link_.on_error(failed);
      throw CommunicationError(failed);
    }
  }

  /// The same for a start. Counts before it starts, since a start may itself wait for the peers.
  template <typename Step>
  auto started(const char* collective, Step step) -> decltype(step()) {
    ++counter_->started;
    return guarded(collective, std::move(step));
  }

  /// A tensor, and the tensor into which the backend writes it.
  struct Arrival {
    at::Tensor arrived, x;
  };

  static Pending pending(std::shared_ptr<Impl> self, const char* collective, Works works,
                         std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs,
                         std::vector<Arrival> arrivals = {}) {
    return Pending([self, collective, works = std::move(works), inputs = std::move(inputs),
                    outputs = std::move(outputs), arrivals = std::move(arrivals)]() mutable {
      self->guarded(collective, [&] {
        const std::vector<at::Tensor>& known = inputs.empty() ? outputs : inputs;
        const bool on_stream = self->link_.waits_for_none && !known.empty();
        self->counter_->waits.measure(on_stream ? known[0].device().type() : at::kCPU, [&] {
          for (auto& work : works) work->wait();
        });
      });
      if (self->link_.lets_go_late) {
        for (const auto& work : works) await_letting_go(work);
      }
      works.clear();
      inputs.clear();
      for (Arrival& arrival : arrivals) {
        if (!arrival.arrived.is_same(arrival.x)) arrival.x.copy_(arrival.arrived);
      }
      arrivals.clear();
      return std::move(outputs);
    });
  }

  CollectiveCounts::Counter counter_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::string name_;
  const LinkTraits& link_;
  bool is_shut_down_ = false;
  int rank_, size_;
  std::atomic<uint32_t> next_tag_{0};
  std::atomic<int64_t> features_{0}, all_to_all_{0}, all_gather_{0}, reduce_scatter_{0}, shift_{0},
      sum_{0};
};

Group group_over(c10::intrusive_ptr<c10d::Backend> backend, std::string name,
                 const LinkTraits& link, CollectiveCounts::Counter counter) {
  return Group(
      std::make_shared<Group::Impl>(std::move(backend), std::move(name), link, std::move(counter)));
}

void Group::shut_down() const {
  if (!impl_ || !impl_->link_.ends_with_peers || impl_->is_shut_down_) return;
  impl_->is_shut_down_ = true;
  impl_->guarded("shutdown", [&] { impl_->backend_->shutdown(); });
}

int Group::rank() const { return impl_ ? impl_->rank_ : 0; }
int Group::size() const { return impl_ ? impl_->size_ : 1; }

Pending Group::all_to_all(const at::Tensor& x, std::vector<int64_t> send_rows,
                          std::vector<int64_t> recv_rows) const {
  if (size() == 1) return done({x});
  TORCH_CHECK(x.dim() > 0, "all_to_all needs at least one dimension");
  if (send_rows.empty() && recv_rows.empty()) {
    TORCH_CHECK(x.size(0) % size() == 0, "all_to_all: ", x.size(0), " rows for ", size(), " ranks");
    send_rows.assign(size(), x.size(0) / size());
    recv_rows = send_rows;
  }
  TORCH_CHECK(static_cast<int>(send_rows.size()) == size() &&
                  recv_rows.size() == send_rows.size() &&
                  std::accumulate(send_rows.begin(), send_rows.end(), int64_t{0}) == x.size(0),
              "all_to_all: the rows to send do not add up to those of x");
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] = std::accumulate(recv_rows.begin(), recv_rows.end(), int64_t{0});
  at::Tensor input = x.contiguous();
  at::Tensor output = at::empty(shape, x.options());
  const int64_t row_bytes = c10::multiply_integers(x.sizes().slice(1)) * x.element_size();
  if (row_bytes == 0) return done({output});
  impl_->all_to_all_ += (x.size(0) - send_rows[rank()]) * row_bytes;
  at::Tensor input_bytes = impl_->outgoing(as_byte_rows(input, row_bytes));
  const at::Tensor output_bytes = as_byte_rows(output, row_bytes);
  at::Tensor arriving = impl_->incoming(output_bytes);
  auto work = impl_->started("all_to_all", [&] {
    return start_all_to_all(*impl_->backend_, arriving, input_bytes, recv_rows, send_rows);
  });
  return Impl::pending(impl_, "all_to_all", {work}, {input, input_bytes}, {output},
                       {{arriving, output_bytes}});
}

Pending Group::all_to_all_features(const at::Tensor& x, std::vector<int64_t> send_rows,
                                   std::vector<int64_t> recv_rows) const {
  if (size() == 1) return done({x});
  const int64_t before = impl_->all_to_all_;
  Pending exchange = all_to_all(x, std::move(send_rows), std::move(recv_rows));
  impl_->features_ += impl_->all_to_all_.exchange(before) - before;
  return exchange;
}

Pending Group::exchange(const std::vector<Message>& send, const std::vector<Message>& receive,
                        int num_slots) const {
  if (size() == 1) return done({});
  std::vector<at::Tensor> inputs, outputs;
  std::vector<Impl::Arrival> arrivals;
  Impl::Works works;
  const uint32_t first_tag = impl_->next_tag_.fetch_add(num_slots);
  const auto tag_of = [&](const Message& message) {
    TORCH_CHECK(message.data.is_contiguous(), "exchange: a message is contiguous");
    return static_cast<int>((first_tag + message.slot) & 0x3fffffff);
  };
  impl_->started("all_to_all", [&] {
    if (send.empty() && receive.empty()) return;
    if (impl_->link_.coalesces) impl_->backend_->startCoalescing();
    for (const Message& message : send) {
      impl_->all_to_all_ += static_cast<int64_t>(message.data.nbytes());
      inputs.push_back(impl_->outgoing(message.data));
      std::vector<at::Tensor> data{inputs.back()};
      works.push_back(impl_->backend_->send(data, message.peer, tag_of(message)));
    }
    for (const Message& message : receive) {
      outputs.push_back(message.data);
      arrivals.push_back({impl_->incoming(message.data), message.data});
      std::vector<at::Tensor> data{arrivals.back().arrived};
      works.push_back(impl_->backend_->recv(data, message.peer, tag_of(message)));
    }
    if (impl_->link_.coalesces) works = {impl_->backend_->endCoalescing()};
  });
  return Impl::pending(impl_, "all_to_all", std::move(works), std::move(inputs), std::move(outputs),
                       std::move(arrivals));
}

Pending Group::all_gather(const at::Tensor& x) const {
  if (size() == 1) return done({x});
  at::Tensor input = x.contiguous();
  std::vector<int64_t> shape = x.sizes().vec();
  shape.at(0) *= size();
  at::Tensor output = at::empty(shape, x.options());
  if (output.numel() == 0) return done({output});
  impl_->all_gather_ += static_cast<int64_t>(input.nbytes()) * (size() - 1);
  at::Tensor input_bytes = impl_->outgoing(as_bytes(input));
  const at::Tensor output_bytes = as_bytes(output);
  at::Tensor arriving = impl_->incoming(output_bytes);
  auto work = impl_->started(
      "all_gather", [&] { return start_all_gather(*impl_->backend_, arriving, input_bytes); });
  return Impl::pending(impl_, "all_gather", {work}, {input, input_bytes}, {output},
                       {{arriving, output_bytes}});
}

Pending Group::reduce_scatter(const at::Tensor& x) const {
  if (size() == 1) return done({x});
  const at::ScalarType dtype = x.scalar_type(), accumulate = dtype_of_sums(dtype);
  if (impl_->link_.scatters_sums) {
    TORCH_CHECK(x.size(0) % size() == 0, "reduce_scatter: ", x.size(0), " rows for ", size(),
                " ranks");
    at::Tensor input = x.to(accumulate).contiguous();
    std::vector<int64_t> shape = x.sizes().vec();
    shape[0] /= size();
    at::Tensor output = at::empty(shape, input.options());
    if (output.numel() == 0) return done({output.to(dtype)});
    impl_->reduce_scatter_ += static_cast<int64_t>(output.nbytes()) * (size() - 1);
    auto work = impl_->started(
        "reduce_scatter", [&] { return start_reduce_scatter(*impl_->backend_, output, input); });
    Pending sum = Impl::pending(impl_, "reduce_scatter", {work}, {input}, {output});
    return Pending([sum, dtype]() mutable { return std::vector{sum.wait().to(dtype)}; });
  }
  // All-to-all, then a sum in rank order: one rounding for bf16, and bits that do not depend on the
  // ranks' places.
  const int64_t before = impl_->all_to_all_;
  Pending exchange = all_to_all(x);
  impl_->reduce_scatter_ += impl_->all_to_all_.exchange(before) - before;
  return Pending([self = *this, exchange, dtype, accumulate]() mutable {
    at::Tensor parts = exchange.wait();
    std::vector<int64_t> shape = parts.sizes().vec();
    shape[0] /= self.size();
    shape.insert(shape.begin(), self.size());
    return std::vector<at::Tensor>{
        parts.view(shape).sum(at::IntArrayRef{0}, false, accumulate).to(dtype)};
  });
}

bool Group::scatters_in_place(at::ScalarType dtype) const {
  return impl_ && impl_->link_.scatters_sums && dtype_of_sums(dtype) == dtype;
}

Pending Group::shift(const std::vector<at::Tensor>& tensors, int distance) const {
  const int n = size();
  if (n == 1 || distance % n == 0) return done(tensors);
  const int to = ((rank() + distance) % n + n) % n, from = ((rank() - distance) % n + n) % n;
  std::vector<at::Tensor> inputs, outputs;
  std::vector<Impl::Arrival> arrivals;
  Impl::Works works;
  impl_->started("shift", [&] {
    const bool sends = std::any_of(tensors.begin(), tensors.end(),
                                   [](const at::Tensor& tensor) { return tensor.numel() > 0; });
    if (sends && impl_->link_.coalesces) impl_->backend_->startCoalescing();
    for (const at::Tensor& tensor : tensors) {
      inputs.push_back(impl_->outgoing(tensor.contiguous()));
      outputs.push_back(at::empty(tensor.sizes(), tensor.options()));
      // All ranks count alike, so each message has a tag of its own, and several shifts may be in
      // flight.
      const int tag = static_cast<int>(impl_->next_tag_++ & 0x3fffffff);
      if (tensor.numel() == 0) continue;
      impl_->shift_ += static_cast<int64_t>(tensor.nbytes());
      arrivals.push_back({impl_->incoming(outputs.back()), outputs.back()});
      std::vector<at::Tensor> send{inputs.back()}, receive{arrivals.back().arrived};
      works.push_back(impl_->backend_->send(send, to, tag));
      works.push_back(impl_->backend_->recv(receive, from, tag));
    }
    if (sends && impl_->link_.coalesces) works = {impl_->backend_->endCoalescing()};
  });
  return Impl::pending(impl_, "shift", std::move(works), std::move(inputs), std::move(outputs),
                       std::move(arrivals));
}

Pending Group::sum_async_(at::Tensor x) const {
  if (size() == 1 || x.numel() == 0) return done({x});
  // Gloo does not sum bf16, and fp32 is more precise.
  at::Tensor work_on = x.to(dtype_of_sums(x.scalar_type())).contiguous();
  impl_->sum_ += 2 * static_cast<int64_t>(work_on.nbytes()) * (size() - 1) / size();
  const at::Tensor summed = impl_->outgoing(work_on);
  std::vector<at::Tensor> tensors{summed};
  auto work = impl_->started("sum", [&] { return impl_->backend_->allreduce(tensors); });
  Pending sum = Impl::pending(impl_, "sum", {work}, {}, {work_on}, {{summed, work_on}});
  return Pending([sum, x]() mutable {
    at::Tensor result = sum.wait();
    if (!result.is_same(x)) x.copy_(result);
    return std::vector<at::Tensor>{x};
  });
}

void Group::sum_(at::Tensor x) const { sum_async_(std::move(x)).wait_all(); }

void Group::broadcast_(at::Tensor x, int root) const {
  if (size() == 1 || x.numel() == 0) return;
  at::Tensor whole = impl_->outgoing(x.contiguous());
  std::vector<at::Tensor> tensors{as_bytes(whole)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.rootTensor = 0;
  impl_->started("broadcast", [&] { impl_->backend_->broadcast(tensors, options)->wait(); });
  if (!whole.is_same(x)) x.copy_(whole);
}

void Group::barrier() const {
  if (size() == 1) return;
  impl_->started("barrier", [&] { impl_->backend_->barrier()->wait(); });
}

// Sends texts together with their lengths in one exchange, since most are short or empty. On GPUs
// each exchange makes the host wait.
std::vector<std::string> Group::gather_text(const std::string& text) const {
  if (size() == 1) return {text};
  constexpr size_t kAhead = 248;  // bytes that travel with the length
  const at::Device device(impl_->link_.device());
  const auto gather = [&](std::string_view bytes, size_t room) {
    const at::Tensor padded = at::zeros({1, static_cast<int64_t>(room)}, at::kByte);
    std::copy(bytes.begin(), bytes.end(), padded.mutable_data_ptr<uint8_t>());
    return all_gather(sent_to(padded, device)).wait().cpu();
  };
  const auto part = [](const at::Tensor& gathered, int rank, size_t begin, size_t end) {
    const auto* const bytes = gathered.const_data_ptr<uint8_t>() + rank * gathered.size(1);
    return std::string(bytes + begin, bytes + end);
  };
  const uint64_t length = text.size();
  std::string head(sizeof(length), '\0');
  std::memcpy(head.data(), &length, sizeof(length));
  const at::Tensor heads =
      gather(head + text.substr(0, std::min(text.size(), kAhead)), head.size() + kAhead);
  std::vector<uint64_t> lengths(static_cast<size_t>(size()));
  std::vector<std::string> texts;
  for (int rank = 0; rank < size(); ++rank) {
    uint64_t& of_rank = lengths[static_cast<size_t>(rank)];
    std::memcpy(&of_rank, part(heads, rank, 0, head.size()).data(), sizeof(of_rank));
    texts.push_back(
        part(heads, rank, head.size(), head.size() + std::min<uint64_t>(of_rank, kAhead)));
  }
  const uint64_t longest = *std::ranges::max_element(lengths);
  if (longest <= kAhead) return texts;
  const at::Tensor rests =
      gather(text.size() > kAhead ? std::string_view(text).substr(kAhead) : "", longest - kAhead);
  for (int rank = 0; rank < size(); ++rank) {
    const uint64_t of_rank = lengths[static_cast<size_t>(rank)];
    if (of_rank <= kAhead) continue;
    texts[static_cast<size_t>(rank)] += part(rests, rank, 0, of_rank - kAhead);
  }
  return texts;
}

Traffic& Traffic::operator+=(const Traffic& other) {
  for (auto bytes : {&Traffic::all_to_all, &Traffic::all_gather, &Traffic::reduce_scatter,
                     &Traffic::shift, &Traffic::sum, &Traffic::features}) {
    this->*bytes += other.*bytes;
  }
  return *this;
}

Traffic Group::traffic() const {
  if (!impl_) return {};
  return {impl_->all_to_all_, impl_->all_gather_, impl_->reduce_scatter_,
          impl_->shift_,      impl_->sum_,        impl_->features_};
}

}  // namespace longspan
