// Items from a thread that makes them to a thread that uses them, a few at a time. No torch.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

namespace longspan {

template <typename Item>
class HandedOver {
 public:
  HandedOver() = default;
  ~HandedOver() { stop(); }
  HandedOver(const HandedOver&) = delete;
  HandedOver& operator=(const HandedOver&) = delete;

  /// Calls `make`, which calls put(), in a thread. Called once. Throws std::system_error without a
  /// further thread of the system.
  void start(std::function<void()> make) {
    thread_ = std::thread([this, make = std::move(make)] {
      try {
        make();
      } catch (const Unwanted&) {
        // stop() was called.
      } catch (...) {
        error_ = std::current_exception();
      }
      const std::scoped_lock lock(mutex_);
      is_complete_ = true;
      changed_.notify_all();
    });
  }
  /// Returns the next item; nullopt after the last one. Rethrows the exception of `make` after the
  /// items before it.
  std::optional<Item> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !items_.empty() || is_complete_; });
    if (items_.empty()) {
      if (error_) std::rethrow_exception(error_);
      return std::nullopt;
    }
    Item item = std::move(items_.front());
    items_.pop_front();
    changed_.notify_all();
    return item;
  }
  /// Ends the thread at its next put() or require_wanted(), and waits for the end.
  void stop() {
    if (!thread_.joinable()) return;
    {
      const std::scoped_lock lock(mutex_);
      is_unwanted_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  /// Calls `make`, which calls put(), in a thread, and `use` with each item in the calling thread,
  /// in order. Rethrows the first exception: of `use`, or of `make` after the items before it.
  /// Without a further thread of the system, `make` runs in the calling thread.
  void pass(const std::function<void()>& make, const std::function<void(Item)>& use) {
    try {
      start(make);
    } catch (const std::system_error&) {
      use_at_once_ = &use;
      return make();
    }
    try {
      while (std::optional<Item> item = next()) use(*std::move(item));
    } catch (...) {
      stop();
      throw;
    }
    stop();
  }

  /// Waits while kMost items wait to be used.
  void put(Item item) {
    if (use_at_once_ != nullptr) return (*use_at_once_)(std::move(item));
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return items_.size() < kMost || is_unwanted_; });
    if (is_unwanted_) throw Unwanted();
    items_.push_back(std::move(item));
    changed_.notify_all();
  }
  /// Ends `make` where stop() was called. For a thread that takes long for an item.
  void require_wanted() {
    const std::scoped_lock lock(mutex_);
    if (is_unwanted_) throw Unwanted();
  }

 private:
  static constexpr size_t kMost = 2;
  struct Unwanted {};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  const std::function<void(Item)>* use_at_once_ = nullptr;
  bool is_complete_ = false, is_unwanted_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace longspan
