// Values that are found by what they were made of, such as a row's copies on a device, which all
// layers of the row use. No torch.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>

namespace longspan {

/// Keeps the values used last, of all threads. `Key` has operator==; copies of a `Value` share it.
/// A key may be asked for by another type, which equals it or not, and from which it is made.
template <typename Key, typename Value>
class RecentlyUsed {
 public:
  /// Values have weights. Keeps the value used last, and earlier ones while all weigh `most`.
  explicit RecentlyUsed(int64_t most) : most_(most) {}

  /// Returns the value of `key`: the kept one, or make()'s, of this weight.
  template <typename Make, typename Asked = Key>
  Value of(const Asked& key, int64_t weight, const Make& make) {
    const std::lock_guard lock(mutex_);
    auto known = entries_.begin();
    while (known != entries_.end() && !(known->key == key)) ++known;
    if (known != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, known);
      return entries_.front().value;
    }
    entries_.push_front({Key(key), weight, make()});
    total_ += weight;
    while (total_ > most_ && entries_.size() > 1) {
      total_ -= entries_.back().weight;
      entries_.pop_back();
    }
    return entries_.front().value;
  }

 private:
  struct Entry {
    Key key;
    int64_t weight;
    Value value;
  };
  const int64_t most_;
  int64_t total_ = 0;
  std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
};

}  // namespace longspan
