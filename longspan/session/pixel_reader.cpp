#include "longspan/session/pixel_reader.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace longspan {

PixelReader::PixelReader(FramePatches patches, int64_t most_bytes)
    : patches_(std::move(patches)), most_bytes_(most_bytes) {}

PixelReader::~PixelReader() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  worker_.reset();
}

void PixelReader::announce(const std::shared_ptr<const RowPictures>& row,
                           const std::vector<PictureFrame>& frames) {
  if (frames.empty()) return;
  if (!worker_) {
    try {
      worker_.emplace();
    } catch (const std::system_error&) {
      return;  // The system has no more threads: take() reads.
    }
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [picture, t] : frames) {
    frames_.push_back(std::make_shared<Frame>(Frame{.row = row, .picture = picture, .t = t}));
  }
  work_on();
}

at::Tensor PixelReader::take(const Picture& picture, int64_t t) {
  std::unique_lock lock(mutex_);
  const auto found = std::ranges::find_if(frames_, [&](const std::shared_ptr<Frame>& frame) {
    return frame->address() == &picture && frame->t == t;
  });
  if (found == frames_.end()) {
    lock.unlock();
    return patches_(picture, t);
  }
  const std::shared_ptr<Frame> frame = *found;
  std::for_each(frames_.begin(), found, [this](const auto& before) { drop(*before); });
  frames_.erase(frames_.begin(), found + 1);
  if (frame->state == Frame::State::kWaiting) {
    work_on();
    lock.unlock();
    return patches_(picture, t);
  }
  read_.wait(lock, [&] { return frame->state == Frame::State::kRead; });
  at::Tensor patches_PX = frame->patches_PX;
  drop(*frame);
  work_on();
  if (frame->error) std::rethrow_exception(frame->error);
  return patches_PX;
}

void PixelReader::drop(Frame& frame) {
  frame.dropped = true;
  if (frame.patches_PX.defined()) bytes_ -= static_cast<int64_t>(frame.patches_PX.nbytes());
  frame.patches_PX = at::Tensor();
}

std::shared_ptr<PixelReader::Frame> PixelReader::next_frame() const {
  if (ends_ || bytes_ >= most_bytes_) return nullptr;
  const auto next = std::ranges::find(frames_, Frame::State::kWaiting,
                                      [](const auto& frame) { return frame->state; });
  return next == frames_.end() ? nullptr : *next;
}

void PixelReader::work_on() {
  if (works_ || !next_frame()) return;
  works_ = true;
  worker_->run([this] { read_frames(); });
}

void PixelReader::read_frames() {
  std::unique_lock lock(mutex_);
  while (const std::shared_ptr<Frame> frame = next_frame()) {
    frame->state = Frame::State::kReading;
    lock.unlock();
    at::Tensor patches_PX;
    std::exception_ptr error;
    try {
      patches_PX = patches_(*frame->address(), frame->t);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (patches_PX.defined() && !frame->dropped) {
      bytes_ += static_cast<int64_t>(patches_PX.nbytes());
      frame->patches_PX = std::move(patches_PX);
    }
    frame->error = std::move(error);
    frame->state = Frame::State::kRead;
    read_.notify_all();
  }
  works_ = false;
}

}  // namespace longspan
