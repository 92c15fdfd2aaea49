// A checkpoint that a thread of its own writes while training goes on.
#pragma once

#include <functional>
#include <future>
#include <memory>

#include "longspan/comm/group.h"
#include "longspan/liveness/notices.h"
#include "longspan/saving/checkpoint_write.h"

namespace longspan {

/// Runs the work of a CheckpointWrite on a thread. The thread has no part in any collective: ranks
/// agree in advance() and finish(), which the thread of the run calls. Destroying the object waits
/// a moment for the work. If the work does not end, it completes by itself, and the checkpoint is
/// removed.
class BackgroundSaving {
 public:
  /// All arguments must outlive this object.
  BackgroundSaving(const Group& world, Notices& notices) : world_(world), notices_(notices) {}
  ~BackgroundSaving();
  BackgroundSaving(const BackgroundSaving&) = delete;
  BackgroundSaving& operator=(const BackgroundSaving&) = delete;

  bool is_busy() const { return write_ != nullptr; }
  /// The step of the checkpoint in progress; only while is_busy().
  int64_t step() const { return write_->step(); }

  /// Begins with the first work. Must not be busy.
  void start(std::unique_ptr<CheckpointWrite> write);
  /// Begins with the next work where all ranks have ended the last. Returns the write once the
  /// checkpoint is complete, else null. After an error there is no checkpoint, and the object is
  /// not busy. Must be busy. Collective; throws as all_or_none.
  std::unique_ptr<CheckpointWrite> advance();
  /// As advance(), but waits for all work, without a time limit.
  std::unique_ptr<CheckpointWrite> finish();

 private:
  void launch();
  /// `agree`: all_or_none or all_or_none_patiently. Returns true if the checkpoint is complete.
  bool end_work(const std::function<void(const std::function<void()>&)>& agree);

  const Group& world_;
  Notices& notices_;
  std::unique_ptr<CheckpointWrite> write_;
  std::future<void> work_;
};

}  // namespace longspan
