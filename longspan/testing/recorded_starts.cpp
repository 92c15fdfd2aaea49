#include "longspan/testing/recorded_starts.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "longspan/testing/thread_groups.h"

namespace longspan::testing {
namespace {

/// A group of threads that records its starts.
class RecordingGroup : public c10d::Backend {
 public:
  RecordingGroup(c10::intrusive_ptr<c10d::Backend> carrier, bool records)
      : Backend(carrier->getRank(), carrier->getSize()),
        carrier_(std::move(carrier)),
        records_(records) {}
  const std::string getBackendName() const override { return "recording"; }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    if (records_) recorded_starts() += 'g';
    return carrier_->_allgather_base(output, input, options);
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& received,
                                               std::vector<int64_t>& sent,
                                               const c10d::AllToAllOptions& options) override {
    if (records_) recorded_starts() += 's';
    return carrier_->alltoall_base(output, input, received, sent, options);
  }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    if (records_) recorded_starts() += 'r';
    return carrier_->allreduce(tensors, options);
  }

 private:
  c10::intrusive_ptr<c10d::Backend> carrier_;
  bool records_;
};

c10::intrusive_ptr<c10d::Backend> make_recording_group(const GroupPlace& place) {
  // The first group of a rank, which is a thread, is that of all ranks.
  thread_local const bool is_rank_0 = place.rank == 0;
  return c10::make_intrusive<RecordingGroup>(thread_link().make_backend(place), is_rank_0);
}

}  // namespace

std::string& recorded_starts() {
  static std::string starts;
  return starts;
}

LinkTraits recording_link() {
  const LinkTraits& threads = thread_link();
  return {.device = threads.device,
          .copies = threads.copies,
          .coalesces = threads.coalesces,
          .ends_with_peers = threads.ends_with_peers,
          .waits_for_none = threads.waits_for_none,
          .lets_go_late = threads.lets_go_late,
          .time_to_meet = threads.time_to_meet,
          .reason_of = threads.reason_of,
          .prepare_threads = threads.prepare_threads,
          .make_backend = make_recording_group};
}

}  // namespace longspan::testing
