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
                           const std::vector<PictureFrame>& frames, int num_uses) {
  if (frames.empty()) return;
  if (!worker_) {
    try {
      worker_.emplace();
    } catch (const std::system_error&) {
      return;  // The system has no more threads: take() reads.
    }
  }
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Frame>> announced;
  for (const auto& [picture, t] : frames) {
    announced.push_back(
        std::make_shared<Frame>(Frame{.row = row, .picture = picture, .t = t, .uses = num_uses}));
  }
  for (int use = 0; use < num_uses; ++use) {
    frames_.insert(frames_.end(), announced.begin(), announced.end());
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
  std::for_each(frames_.begin(), found, [this](const auto& before) { end_use(*before); });
  frames_.erase(frames_.begin(), found + 1);
  if (frame->state == Frame::State::kWaiting) {
    work_on();
    read(*frame, lock);
  }
  read_.wait(lock, [&] { return frame->state == Frame::State::kRead; });
  at::Tensor patches_PX = frame->patches_PX;
  const std::exception_ptr error = frame->error;
  end_use(*frame);
  if (bytes_ > most_bytes_) drop_pixels(*frame);
  work_on();
  if (error) std::rethrow_exception(error);
  return patches_PX;
}

void PixelReader::end_use(Frame& frame) {
  if (--frame.uses == 0) drop_pixels(frame);
}

void PixelReader::drop_pixels(Frame& frame) {
  if (frame.patches_PX.defined()) {
    bytes_ -= static_cast<int64_t>(frame.patches_PX.nbytes());
    frame.patches_PX = at::Tensor();
    frame.state = Frame::State::kWaiting;
  }
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
  while (const std::shared_ptr<Frame> frame = next_frame()) read(*frame, lock);
  works_ = false;
}

void PixelReader::read(Frame& frame, std::unique_lock<std::mutex>& lock) {
  frame.state = Frame::State::kReading;
  lock.unlock();
  at::Tensor patches_PX;
  std::exception_ptr error;
  try {
    patches_PX = patches_(*frame.address(), frame.t);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  if (patches_PX.defined() && frame.uses > 0) {
    bytes_ += static_cast<int64_t>(patches_PX.nbytes());
    frame.patches_PX = std::move(patches_PX);
  }
  frame.error = std::move(error);
  frame.state = Frame::State::kRead;
  read_.notify_all();
}

}  // namespace longspan
