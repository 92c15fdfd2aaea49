// Pixels of pictures, read by a thread ahead of their use.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "longspan/memory/copier.h"
#include "longspan/models/picture_features.h"
#include "longspan/rows/picture.h"
#include "longspan/sequence_parallel/picture_shares.h"
#include "longspan/spec/device_sizes.h"

namespace longspan {

/// Reads announced frames in a thread of its own, in their order, and holds their pixels until they
/// are taken.
class PixelReader {
 public:
  /// `patches`: thread-safe; must not use the calling thread's state. The thread begins no frame
  /// while the unused pixels take `most_bytes` or more, so the reader holds at most `most_bytes`
  /// and one frame.
  explicit PixelReader(FramePatches patches, int64_t most_bytes = kPixelsAheadBytes);
  /// Waits until the thread has ended the frame that it reads at present.
  ~PixelReader();

  /// Queues frames of a row behind the frames announced before, `num_uses` times one after the
  /// other. The caller must take frames in this order. A frame's pixels are held until its last use
  /// if `most_bytes` allows; otherwise they are read again. Not thread-safe.
  void announce(const std::shared_ptr<const RowPictures>& row,
                const std::vector<PictureFrame>& frames, int num_uses = 1);
  /// Returns the patches of temporal patch `t`, as FramePatches. `picture`: a picture in an
  /// announced row, found by its address. A frame that was not announced is read in the calling
  /// thread. Drops the frames that were announced before this frame. Rethrows the exception of the
  /// reading.
  at::Tensor take(const Picture& picture, int64_t t);

 private:
  struct Frame {
    std::shared_ptr<const RowPictures> row;
    size_t picture;
    int64_t t;
    int uses;  // remaining uses: entries in frames_, and a use in progress
    enum class State { kWaiting, kReading, kRead } state = State::kWaiting;
    at::Tensor patches_PX = {};
    std::exception_ptr error = {};

    const Picture* address() const { return &row->pictures[picture]; }
  };

  /// Starts the thread's work if there is any. Called with the lock held.
  void work_on();
  /// The thread's work: reads frames until no frame is left, or until pixels of `most_bytes` wait.
  void read_frames();
  /// Reads the frame's pixels without the lock.
  void read(Frame& frame, std::unique_lock<std::mutex>& lock);
  std::shared_ptr<Frame> next_frame() const;
  /// Ends a use of the frame. Drops the pixels after the last use.
  void end_use(Frame& frame);
  void drop_pixels(Frame& frame);

  FramePatches patches_;
  int64_t most_bytes_;
  std::mutex mutex_;
  std::condition_variable read_;
  std::deque<std::shared_ptr<Frame>> frames_;  // announced, not yet taken; one entry per use
  int64_t bytes_ = 0;                          // of pixels read and not taken
  bool works_ = false, ends_ = false;
  std::optional<Worker> worker_;  // declared last, so that the thread ends before the other members
};

}  // namespace longspan
