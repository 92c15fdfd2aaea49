// Atomic writes of files and folders: a file is whole or absent. No torch.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "longspan/base/user_error.h"

namespace longspan {

/// Thrown where a disk is full or a quota is used up. A later attempt may succeed.
class DiskFullError : public UserError {
 public:
  using UserError::UserError;
};

/// Throws DiskFullError for an errno of a full disk or quota, UserError for any other.
[[noreturn]] void throw_disk_error(int error, const std::string& message);

/// A file that is written under a temporary name (left_temporary.h) in its folder. commit() fsyncs
/// the temporary file and renames it over `path`. Without a commit the destructor removes the
/// temporary file, and `path` stays as it was. All members throw as throw_disk_error, with path,
/// reason and remedy.
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

/// Writes to a temporary name in the same folder, fsyncs, and renames over `path`. Throws as
/// throw_disk_error, with path, reason and remedy.
void write_file_atomically(const std::string& path, std::string_view content);

/// Appends to a file, and creates it where it is missing. After a failure the file may hold any
/// part of `content`. Throws as throw_disk_error.
void append_to_file(const std::string& path, std::string_view content);

/// Fsyncs a folder, so that renamed and created files survive a power cut. Throws as
/// throw_disk_error.
void sync_folder(const std::string& path);

/// Renames the folder `from` to `to`, and an existing `to` to `replaced`. Removes an older
/// `replaced` first. Exchanges `from` and `to` atomically where the file system can (renameat2), so
/// that `to` exists at each moment. Throws UserError for errors of the disk, and where
/// remove_own_folder() refuses the older `replaced`.
void put_in_place(const std::string& from, const std::string& to, const std::string& replaced);

/// Returns one sentence on what the user can do after this errno of a write.
const char* remedy_for(int error);

}  // namespace longspan
