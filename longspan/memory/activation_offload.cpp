#include "longspan/memory/activation_offload.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <list>
#include <optional>
#include <utility>

#include "longspan/memory/copier.h"
#include "longspan/memory/host_memory.h"
#include "longspan/memory/spill_file.h"

namespace longspan {
namespace {

class Entry;

/// One tensor and its copies.
struct Item {
  std::vector<int64_t> sizes;
  at::ScalarType dtype{};
  int64_t num_bytes = 0;
  at::Tensor leaving;  // on a GPU: kept until its stream has waited for the copy
  at::Tensor buffer;   // pinned; `host` is a view of it, unless undefined
  at::Tensor host;     // with a file: only while a copy to or from the file is in progress
  Copy to_host;        // device to host
  int64_t place = -1;  // offset in the file
  Copy written, read;  // to the file, from the file
  at::Tensor device;   // prefetched
  Copy to_device;
};

/// Pinned memory for tensors that leave a GPU. Returned buffers are reused in stream order
/// (Copier), so the host never waits although it is rows ahead of the device.
class HostRoom {
 public:
  /// Returns the smallest free buffer of at least `num_bytes`, or a new one. If a new buffer would
  /// raise the total above the peak demand, first waits for the copies of the buffers that have
  /// been free for longest, and frees those buffers.
  at::Tensor take(int64_t num_bytes, at::Device device, Copier& copier) {
    wanted_ += num_bytes;
    most_wanted_ = std::max(most_wanted_, wanted_);
    auto best = free_.end();
    for (auto at = free_.begin(); at != free_.end(); ++at) {
      const bool fits = at->size() >= num_bytes && at->size() / kMostTooLarge <= num_bytes;
      if (fits && (best == free_.end() || at->size() < best->size())) best = at;
    }
    if (best != free_.end()) {
      at::Tensor memory = std::move(best->memory);
      free_.erase(best);
      return memory;
    }
    for (; held_ + num_bytes > most_wanted_ && !free_.empty(); free_.pop_front()) {
      free_.front().copied.wait_on_host();
      held_ -= free_.front().size();
    }
    copier.let_go_of_ended();
    held_ += num_bytes;
    return empty_on_host({num_bytes}, at::kByte, device);
  }
  /// Frees a buffer that was taken for `num_bytes`. `copied`: the last copy to or from it.
  void give_back(at::Tensor memory, int64_t num_bytes, Copy copied) {
    wanted_ -= num_bytes;
    free_.push_back({std::move(memory), std::move(copied)});
  }

 private:
  /// A row may use the buffer of a longer one that is larger by at most this factor.
  static constexpr int64_t kMostTooLarge = 4;
  struct Buffer {
    at::Tensor memory;
    Copy copied;
    int64_t size() const { return static_cast<int64_t>(memory.nbytes()); }
  };
  std::list<Buffer> free_;
  int64_t held_ = 0;                      // bytes of all buffers
  int64_t wanted_ = 0, most_wanted_ = 0;  // bytes in use: now, and the peak
};

}  // namespace

struct ActivationOffload::Shared {
  Shared(at::Device of, const std::string& folder, bool reads_ahead)
      : device(of), ahead(reads_ahead), copier(of) {
    if (folder.empty()) return;
    file.emplace(folder);
    disk.emplace(device);
  }

  at::Device device;
  bool ahead;
  std::optional<SpillFile> file;
  Copier copier;
  std::optional<Worker> disk;  // destroyed first: its jobs wait for copies and use the file
  std::list<Entry*> entries;   // the live entries, in the order of their put()
  HostRoom room;
};

namespace {

using Shared = ActivationOffload::Shared;

class Entry : public SavedTensors {
 public:
  Entry(std::shared_ptr<Shared> shared, std::vector<at::Tensor> tensors, bool in_file)
      : shared_(std::move(shared)), in_file_(in_file) {
    try {
      for (at::Tensor& tensor : tensors) leave(std::move(tensor));
    } catch (...) {
      if (on_gpu()) let_go();
      throw;
    }
    place_ = shared_->entries.insert(shared_->entries.end(), this);
  }

  ~Entry() override {
    shared_->entries.erase(place_);
    if (on_gpu()) let_go();
    for (Item& item : items_) {
      if (item.place < 0) continue;
      // Release the place only after pending I/O. Jobs of the file run in order, so that it is
      // enough to enqueue the release.
      shared_->disk->run([shared = shared_.get(), place = item.place, size = item.num_bytes] {
        shared->file->release(place, size);
      });
    }
  }

  at::Tensor get(size_t i) override {
    if (on_gpu()) shared_->entries.back()->wait_until_left();
    Item& item = items_.at(i);
    if (!item.device.defined()) start_to_device(item);
    item.to_device.wait();
    if (in_file_) item.host.reset();
    return std::exchange(item.device, {});
  }

  void read_previous_ahead() override {
    if (place_ == shared_->entries.begin()) return;
    Entry& previous = **std::prev(place_);
    for (Item& item : previous.items_) {
      if (previous.in_file_) {
        if (!item.host.defined()) previous.start_read(item);
      } else if (shared_->ahead && !item.device.defined()) {
        previous.start_to_device(item);
      }
    }
  }

  /// Makes later computation wait until the tensors have left the device, so that it may reuse
  /// their memory: on the CPU the caller waits, on a GPU the stream. Throws the exception of the
  /// copy.
  void wait_until_left() {
    for (Item& item : items_) {
      if (!on_gpu() || item.leaving.defined()) item.to_host.wait();
      item.leaving.reset();
    }
  }
  /// Waits until the file holds the tensors.
  void wait_until_written() const {
    for (const Item& item : items_) {
      if (item.written.defined()) item.written.wait_on_host();
    }
  }

 private:
  bool on_gpu() const { return !shared_->device.is_cpu(); }

  /// On a GPU: lets later kernels of the stream reuse the device memory, and other entries the
  /// pinned memory.
  void let_go() noexcept {
    try {
      wait_until_left();
      for (Item& item : items_) {
        if (item.device.defined()) item.to_device.wait();
        item.device.reset();
        if (!item.buffer.defined()) continue;
        shared_->room.give_back(std::exchange(item.buffer, {}), item.num_bytes,
                                item.to_device.defined() ? item.to_device : item.to_host);
      }
    } catch (const std::exception&) {
      // The device has failed; the next call that uses it reports the error.
    }
  }

  void make_host_memory(Item& item) {
    if (!on_gpu() || in_file_ || item.num_bytes == 0) {
      item.host = empty_on_host(item.sizes, item.dtype, shared_->device);
      return;
    }
    item.buffer = shared_->room.take(item.num_bytes, shared_->device, shared_->copier);
    item.host = item.buffer.narrow(0, 0, item.num_bytes).view(item.dtype).view(item.sizes);
  }

  void leave(at::Tensor tensor) {
    Item item;
    item.sizes = tensor.sizes().vec();
    item.dtype = tensor.scalar_type();
    item.num_bytes = static_cast<int64_t>(tensor.nbytes());
    make_host_memory(item);
    tensor = tensor.contiguous();
    item.to_host = shared_->copier.start(item.host, tensor, Keeper::kCaller);
    if (on_gpu()) item.leaving = std::move(tensor);
    if (in_file_) {
      item.place = shared_->file->reserve(item.num_bytes);
      item.written = shared_->disk->run([file = &*shared_->file, host = std::move(item.host),
                                         copied = item.to_host, place = item.place] {
        copied.wait_on_host();
        file->write(place, host.const_data_ptr(), static_cast<int64_t>(host.nbytes()));
      });
    }
    items_.push_back(std::move(item));
  }

  void start_read(Item& item) {
    item.written.wait_on_host();
    item.host = empty_on_host(item.sizes, item.dtype, shared_->device);
    item.read = shared_->disk->run([file = &*shared_->file, host = item.host, place = item.place] {
      file->read(place, host.mutable_data_ptr(), static_cast<int64_t>(host.nbytes()));
    });
  }

  void start_to_device(Item& item) {
    if (in_file_) {
      if (!item.host.defined()) start_read(item);
      item.read.wait_on_host();
    }
    item.device = at::empty(item.sizes, at::TensorOptions(shared_->device).dtype(item.dtype));
    item.to_device = shared_->copier.start(item.device, item.host, Keeper::kCaller);
  }

  std::shared_ptr<Shared> shared_;
  bool in_file_;
  std::vector<Item> items_;
  std::list<Entry*>::iterator place_;
};

}  // namespace

ActivationOffload::ActivationOffload(at::Device device, const std::string& folder)
    : ActivationOffload(device, folder, /*ahead=*/!device.is_cpu()) {}

ActivationOffload::ActivationOffload(at::Device device, const std::string& folder, bool ahead)
    : shared_(std::make_shared<Shared>(device, folder, ahead)) {}

ActivationOffload::~ActivationOffload() = default;

std::shared_ptr<SavedTensors> ActivationOffload::put(std::vector<at::Tensor> tensors,
                                                     bool briefly) {
  // Frees the device memory of the last block before this block needs memory there, and the host
  // memory of the block before it.
  auto& entries = shared_->entries;
  if (!entries.empty()) entries.back()->wait_until_left();
  if (entries.size() > 1) (*std::prev(entries.end(), 2))->wait_until_written();
  const bool in_file = shared_->file.has_value() && !briefly;
  const auto entry = std::make_shared<Entry>(shared_, std::move(tensors), in_file);
  // On the CPU the copies run on the cores of the computation. There, holding both ends of a copy
  // meanwhile gains nothing.
  if (briefly && shared_->device.is_cpu()) entry->wait_until_left();
  return entry;
}

int64_t ActivationOffload::peak_file_bytes() const {
  return shared_->file ? shared_->file->peak_bytes() : 0;
}

}  // namespace longspan
