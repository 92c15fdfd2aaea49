// Event files of TensorBoard. No torch. (Backed by the `prost` and `crc32c` crates, see rust/.)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace longspan {

/// A file that is written from the first moment on, `events.out.tfevents.<time>.<host>.<process>.
/// <suffix>`. All members throw UserError when it cannot be written.
class EventFile {
 public:
  /// Makes the folder. Of earlier files with this suffix everything after `last_step` goes (of a
  /// run that goes on from there); all of it where that is negative (of one that begins).
  EventFile(const std::string& folder, const std::string& suffix, int64_t last_step);
  EventFile(EventFile&&) noexcept;
  EventFile& operator=(EventFile&&) noexcept;
  ~EventFile();

  /// Numbers of a step, by tag. What the disk has no room for is written by the next call.
  void add(const std::vector<std::pair<std::string, double>>& scalars, int64_t step);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
