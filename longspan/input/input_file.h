// The door through which every byte of a user's or stranger's file comes in. Only regular files are
// read: no pipe, device or socket can keep the program waiting. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace longspan {

/// Most bytes of a file that is read whole and that people write: configurations, config.json,
/// templates. Parsed, it takes no more than some 30 times as much memory.
inline constexpr int64_t kMaxSettingsBytes = int64_t{16} << 20;
/// The same of tables that programs write, which grow with a model or a run: indexes of shards,
/// logs, tables of checksums, tokenizers.
inline constexpr int64_t kMaxTableBytes = int64_t{1} << 30;
/// Most bytes of one line of a log. Its file may have any size.
inline constexpr int64_t kMaxLineBytes = int64_t{1} << 30;
/// For files that are meant to be large, and of which memory is the limit: data sets, which may be
/// one list, and their lines.
inline constexpr int64_t kAnySize = INT64_MAX;

/// A regular file that is open for reading. `what` says what it is for ("configuration file").
class InputFile {
 public:
  /// Throws UserError, which names the path and what is wanted, when there is no such file, it must
  /// not be read, it is a folder, a pipe, a device or a socket, or its links lead in a circle.
  /// Never waits for another process.
  InputFile(const std::string& path, std::string_view what);
  /// nullopt where nothing of that name is there; else as above.
  static std::optional<InputFile> open_if_there(const std::string& path, std::string_view what);

  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  /// For mmap, posix_fadvise; closed with this object.
  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  const std::string& what() const { return what_; }
  /// In bytes, when it was opened.
  int64_t size() const { return size_; }
  /// Reads up to `num_bytes` more; 0 at the end of the file. Throws UserError.
  size_t read(char* to, size_t num_bytes);
  /// Reads from the beginning again.
  void rewind();
  /// The whole file, as it is. Throws UserError when it has more than `most_bytes`.
  std::string read_all(int64_t most_bytes);

 private:
  InputFile(const std::string& path, std::string_view what, int descriptor);

  std::string path_, what_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

/// Lines of a file, one at a time. Throws UserError where one has more than `most_bytes`.
class LineReader {
 public:
  explicit LineReader(InputFile file, int64_t most_bytes = kMaxLineBytes);

  /// The next line, without its line feed; false at the end. A byte order mark before the first is
  /// left out.
  bool next(std::string& line);
  /// Did the line that next() gave end with the file, and not with a line feed?
  bool ended_with_file() const { return ended_with_file_; }
  /// Of the line that next() gave, from 1.
  int64_t number() const { return number_; }
  void rewind();

 private:
  InputFile file_;
  std::string buffer_;
  int64_t most_bytes_;
  size_t begin_ = 0, end_ = 0;
  int64_t number_ = 0;
  bool ended_with_file_ = false;
};

/// The file's bytes, without a byte order mark. Throws UserError as InputFile does, and when it has
/// more than `most_bytes`.
std::string read_text_file(const std::string& path, std::string_view what,
                           int64_t most_bytes = kMaxSettingsBytes);
/// nullopt where nothing of that name is there.
std::optional<std::string> read_text_file_if_there(const std::string& path, std::string_view what,
                                                   int64_t most_bytes = kMaxSettingsBytes);

/// Whether something has this name, of whatever kind: also a link that leads nowhere, which is an
/// error when it is read.
bool is_there(const std::string& path);

/// The first bytes of a file, to see what it is; fewer where it is shorter, none where it cannot be
/// read.
std::string first_bytes(const std::string& path, size_t num_bytes);

/// The path of the file that was opened last, by any thread; empty before the first. For messages
/// about what nobody foresaw.
std::string last_input_file();

/// Throws UserError unless the path is a regular file that may be read, of at most `most_bytes`:
/// for files that another library opens by their path.
void require_readable_file(const std::string& path, std::string_view what,
                           int64_t most_bytes = kMaxTableBytes);
/// The same, but nothing need be there.
void require_readable_file_if_there(const std::string& path, std::string_view what,
                                    int64_t most_bytes = kMaxTableBytes);

}  // namespace longspan
