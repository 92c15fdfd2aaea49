// Files that are whole or absent. No torch.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "longspan/config/user_error.h"

namespace longspan {

/// There is no room left on a disk, or a quota is used up: somebody may make room.
class DiskFullError : public UserError {
 public:
  using UserError::UserError;
};

/// What writing failed with: DiskFullError where this errno says so, UserError otherwise.
[[noreturn]] void throw_disk_error(int error, const std::string& message);

/// A file being written under a temporary name (left_temporary.h) in its own folder. commit()
/// fsyncs and renames it over `path`; without a commit the temporary is removed and what was at
/// `path` stays as it was. All members throw as throw_disk_error (path, reason, remedy) when the
/// system refuses.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t num_bytes);
  void commit();

 private:
  [[noreturn]] void fail(int error) const;

  std::string path_, temporary_;
  int descriptor_ = -1;
};

/// Writes to a temporary name in the same folder, fsyncs, renames over `path`. Throws UserError
/// (path, reason, remedy).
void write_file_atomically(const std::string& path, std::string_view content);

/// Adds to the end of a file, which is made where it is missing. After a failure any part of
/// `content` may be in the file. Throws as throw_disk_error.
void append_to_file(const std::string& path, std::string_view content);

/// Makes what was renamed or made in a folder survive a power cut. Throws UserError.
void sync_folder(const std::string& path);

/// Renames the folder `from` to `to` and keeps what was there as `replaced`. Does so in one step
/// where the file system can (renameat2), so that at each moment one of both has the name. Removes
/// an older `replaced`. Throws UserError, as remove_own_folder does for that.
void put_in_place(const std::string& from, const std::string& to, const std::string& replaced);

/// What the user can do when writing failed with this errno, in one sentence.
const char* remedy_for(int error);

}  // namespace longspan
