// Event files of TensorBoard. No torch. (Backed by the `prost` and `crc32c` crates, see rust/.)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace longspan {

/// A file `events.out.tfevents.<time>.<host>.<process>.<suffix>`, which exists from construction
/// on. All members throw UserError if the file cannot be written.
class EventFile {
 public:
  /// Creates the folder. In earlier files with this suffix, removes everything after `last_step`
  /// (for a resumed run), or everything if `last_step` is negative (for a new run).
  EventFile(const std::string& folder, const std::string& suffix, int64_t last_step);
  EventFile(EventFile&&) noexcept;
  EventFile& operator=(EventFile&&) noexcept;
  ~EventFile();

  /// Writes a step's scalars by tag. If the disk is full, the next call writes these scalars.
  void add(const std::vector<std::pair<std::string, double>>& scalars, int64_t step);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
