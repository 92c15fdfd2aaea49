#include "longspan/testing/thread_groups.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <tuple>
#include <vector>

#include "longspan/rendezvous/communication_error.h"

namespace longspan::testing {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// One rank's part of an operation.
struct Part {
  bool is_there = false;
  at::Tensor input{}, output{};
  std::vector<int64_t> sent_rows{}, received_rows{};  // for an all-to-all
};

using Move = void (*)(std::vector<Part>& parts);

struct Operation {
  std::string name;
  std::vector<Part> parts;  // one per participating rank
  std::vector<int> ranks;   // of the parts
  size_t num_there = 0;
  bool is_done = false;
  std::string failure;
  std::condition_variable changed;
};

char* bytes_of(const at::Tensor& x) { return static_cast<char*>(x.mutable_data_ptr()); }

void move_all_to_all(std::vector<Part>& parts) {
  std::vector<int64_t> taken(parts.size());  // rows of each sender that went to lower ranks
  for (size_t to = 0; to < parts.size(); ++to) {
    char* out = bytes_of(parts[to].output);
    for (size_t from = 0; from < parts.size(); ++from) {
      const at::Tensor& input = parts[from].input;
      const auto split = [](const at::Tensor& x, const std::vector<int64_t>& rows, size_t size) {
        return rows.empty() ? std::vector<int64_t>(size, x.size(0) / static_cast<int64_t>(size))
                            : rows;
      };
      const int64_t rows = split(input, parts[from].sent_rows, parts.size())[to];
      const int64_t row_bytes =
          input.size(0) == 0 ? 0 : static_cast<int64_t>(input.nbytes()) / input.size(0);
      if (rows != split(parts[to].output, parts[to].received_rows, parts.size())[from]) {
        throw std::runtime_error(
            fmt::format("rank {} sends another number of rows than rank {} receives", from, to));
      }
      if (rows > 0) std::memcpy(out, bytes_of(input) + taken[from] * row_bytes, rows * row_bytes);
      out += rows * row_bytes;
      taken[from] += rows;
    }
  }
}

void move_all_gather(std::vector<Part>& parts) {
  for (Part& to : parts) {
    char* out = bytes_of(to.output);
    for (const Part& from : parts) {
      if (from.input.nbytes() * parts.size() != to.output.nbytes()) {
        throw std::runtime_error("the ranks gather parts of different sizes");
      }
      std::memcpy(out, bytes_of(from.input), from.input.nbytes());
      out += from.input.nbytes();
    }
  }
}

template <typename T>
void sum(std::vector<Part>& parts) {
  for (int64_t i = 0; i < parts[0].output.numel(); ++i) {
    T total{};
    for (const Part& part : parts) total += part.output.const_data_ptr<T>()[i];
    for (const Part& part : parts) part.output.mutable_data_ptr<T>()[i] = total;
  }
}

void move_sum(std::vector<Part>& parts) {
  for (const Part& part : parts) {
    if (part.output.numel() != parts[0].output.numel() ||
        part.output.scalar_type() != parts[0].output.scalar_type()) {
      throw std::runtime_error("the ranks sum tensors of different sizes or types");
    }
  }
  switch (parts[0].output.scalar_type()) {
    case at::kFloat:
      return sum<float>(parts);
    case at::kDouble:
      return sum<double>(parts);
    case at::kLong:
      return sum<int64_t>(parts);
    case at::kInt:
      return sum<int32_t>(parts);
    default:
      throw std::runtime_error(fmt::format("no sums of {} between threads",
                                           c10::toString(parts[0].output.scalar_type())));
  }
}

/// Copies from the one part that has an input to those that have an output.
void move_copy(std::vector<Part>& parts) {
  for (const Part& from : parts) {
    if (!from.input.defined()) continue;
    for (const Part& to : parts) {
      if (!to.output.defined()) continue;
      if (to.output.nbytes() != from.input.nbytes()) {
        throw std::runtime_error("a rank sends another number of bytes than another receives");
      }
      if (from.input.nbytes() == 0) continue;
      std::memcpy(bytes_of(to.output), bytes_of(from.input), from.input.nbytes());
    }
  }
}

void move_nothing(std::vector<Part>& /*parts*/) {}

/// The meeting point at which the ranks of a group exchange their parts.
class Meeting {
 public:
  explicit Meeting(int size) : is_gone_(size) {}

  /// Joins the `number`-th operation of the group, in which all ranks take part.
  std::shared_ptr<Operation> meet_all(int64_t number, int rank, const char* name, Part part,
                                      Move move) {
    std::vector<int> ranks(is_gone_.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    return bring({number, -1, -1, -1}, std::move(ranks), rank, name, std::move(part), move);
  }

  std::shared_ptr<Operation> meet_one(int from, int to, int tag, int64_t number, Part part) {
    const size_t place = part.input.defined() ? 0 : 1;
    return bring({number, from, to, tag}, {from, to}, place, "a message", std::move(part),
                 move_copy);
  }

  void wait(Operation& operation, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    const bool ended = operation.changed.wait_for(
        lock, timeout, [&] { return operation.is_done || !operation.failure.empty(); });
    if (!operation.failure.empty()) throw std::runtime_error(operation.failure);
    if (!ended) throw std::runtime_error(fmt::format("timed out: {}", operation.name));
  }

  void leave(int rank) {
    std::lock_guard lock(mutex_);
    is_gone_[rank] = true;
    for (auto& [key, operation] : open_) fail_without(*operation);
  }

 private:
  using Key = std::tuple<int64_t, int, int, int>;  // number, sender, receiver, tag

  std::shared_ptr<Operation> bring(Key key, std::vector<int> ranks, size_t place, const char* name,
                                   Part part, Move move) {
    std::shared_ptr<Operation> operation;
    {
      std::lock_guard lock(mutex_);
      std::shared_ptr<Operation>& open = open_[key];
      if (!open) {
        open = std::make_shared<Operation>();
        open->name = name;
        open->parts.resize(ranks.size());
        open->ranks = std::move(ranks);
      }
      operation = open;
      part.is_there = true;
      operation->parts[place] = std::move(part);
      if (operation->name != name) {
        operation->failure = fmt::format("{} meets {}", operation->name, name);
      }
      ++operation->num_there;
      fail_without(*operation);
      if (operation->num_there < operation->parts.size()) return operation;
      open_.erase(key);
    }
    std::string failure = operation->failure;
    if (failure.empty()) {
      try {
        move(operation->parts);
      } catch (const std::exception& error) {
        failure = error.what();
      }
    }
    std::lock_guard lock(mutex_);
    operation->parts.clear();
    operation->failure = failure;
    operation->is_done = true;
    operation->changed.notify_all();
    return operation;
  }

  void fail_without(Operation& operation) {
    for (size_t i = 0; i < operation.parts.size(); ++i) {
      if (operation.parts[i].is_there || !is_gone_[operation.ranks[i]]) continue;
      operation.failure = fmt::format("rank {} has ended", operation.ranks[i]);
    }
    if (!operation.failure.empty()) operation.changed.notify_all();
  }

  std::mutex mutex_;
  std::vector<bool> is_gone_;
  std::map<Key, std::shared_ptr<Operation>> open_;
};

class ThreadWork : public c10d::Work {
 public:
  ThreadWork(std::shared_ptr<Meeting> meeting, std::shared_ptr<Operation> operation,
             std::chrono::seconds timeout)
      : meeting_(std::move(meeting)), operation_(std::move(operation)), timeout_(timeout) {}
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    meeting_->wait(*operation_, timeout_);
    return true;
  }

 private:
  std::shared_ptr<Meeting> meeting_;
  std::shared_ptr<Operation> operation_;
  std::chrono::seconds timeout_;
};

class ThreadGroup : public c10d::Backend {
 public:
  ThreadGroup(std::shared_ptr<Meeting> meeting, const GroupPlace& place)
      : Backend(place.rank, place.size),
        meeting_(std::move(meeting)),
        store_(place.store),
        timeout_(place.timeout_seconds) {}
  ~ThreadGroup() override { meeting_->leave(getRank()); }

  const std::string getBackendName() const override { return "threads"; }

  WorkPtr send(std::vector<at::Tensor>& tensors, int peer, int tag) override {
    return work(meeting_->meet_one(getRank(), peer, tag, num_sent_[{peer, tag}]++,
                                   {.input = tensors.at(0)}));
  }
  WorkPtr recv(std::vector<at::Tensor>& tensors, int peer, int tag) override {
    return work(meeting_->meet_one(peer, getRank(), tag, num_received_[{peer, tag}]++,
                                   {.output = tensors.at(0)}));
  }
  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions&) override {
    return meet("allreduce", {.output = tensors.at(0)}, move_sum);
  }
  WorkPtr broadcast(std::vector<at::Tensor>& tensors,
                    const c10d::BroadcastOptions& options) override {
    Part part;
    (options.rootRank == getRank() ? part.input : part.output) = tensors.at(0);
    return meet("broadcast", std::move(part), move_copy);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions&) override {
    return meet("all_gather", {.input = input, .output = output}, move_all_gather);
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& received,
                        std::vector<int64_t>& sent, const c10d::AllToAllOptions&) override {
    return meet("all_to_all",
                {.input = input, .output = output, .sent_rows = sent, .received_rows = received},
                move_all_to_all);
  }
  WorkPtr barrier(const c10d::BarrierOptions&) override {
    return meet("barrier", {}, move_nothing);
  }

 private:
  WorkPtr meet(const char* name, Part part, Move move) {
    return work(meeting_->meet_all(num_collectives_++, getRank(), name, std::move(part), move));
  }
  WorkPtr work(std::shared_ptr<Operation> operation) {
    return c10::make_intrusive<ThreadWork>(meeting_, std::move(operation), timeout_);
  }

  std::shared_ptr<Meeting> meeting_;
  c10::intrusive_ptr<c10d::Store> store_;  // the rank that serves it may end first
  std::chrono::seconds timeout_;
  int64_t num_collectives_ = 0;
  std::map<std::pair<int, int>, int64_t> num_sent_, num_received_;  // by peer and tag
};

/// Returns the meeting whose number is in the group's store. The first rank makes it.
std::shared_ptr<Meeting> meeting_at(c10d::Store& store, int size) {
  static std::mutex mutex;
  static std::map<int64_t, std::weak_ptr<Meeting>> meetings;
  static int64_t next = 0;
  std::lock_guard lock(mutex);
  // The store's counter identifies the first rank; all ranks are in this process.
  if (store.add("ranks here", 1) == 1) {
    auto made = std::make_shared<Meeting>(size);
    meetings[++next] = made;
    const std::string number = std::to_string(next);
    store.set("meeting", std::vector<uint8_t>(number.begin(), number.end()));
    return made;
  }
  const std::vector<uint8_t> number = store.get("meeting");
  auto there = meetings.at(std::stoll(std::string(number.begin(), number.end()))).lock();
  // The first rank has ended before the others came, as if its connection had been closed.
  if (!there) throw std::runtime_error("a rank has ended");
  return there;
}

c10::DeviceType host() { return c10::DeviceType::CPU; }

std::function<void()> any_thread_will_do() {
  return [] {};
}

c10::intrusive_ptr<c10d::Backend> make_thread_group(const GroupPlace& place) {
  return c10::make_intrusive<ThreadGroup>(meeting_at(*place.store, place.size), place);
}

c10::intrusive_ptr<c10d::Backend> make_thread_group_slowly(const GroupPlace& place) {
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  return make_thread_group(place);
}

constexpr LinkTraits traits(std::chrono::seconds time_to_meet,
                            c10::intrusive_ptr<c10d::Backend> (&make_backend)(const GroupPlace&)) {
  return {.device = host,
          .copies = false,
          .coalesces = false,
          .ends_with_peers = false,
          .waits_for_none = false,
          .lets_go_late = false,
          .time_to_meet = time_to_meet,
          .reason_of = brief_reason,
          .prepare_threads = any_thread_will_do,
          .make_backend = make_backend};
}

constexpr LinkTraits kThreads = traits(std::chrono::seconds(10), make_thread_group);
constexpr LinkTraits kSlowThreads = traits(std::chrono::seconds(2), make_thread_group_slowly);

}  // namespace

const LinkTraits& thread_link() { return kThreads; }
const LinkTraits& slow_thread_link() { return kSlowThreads; }

}  // namespace longspan::testing
