// All files of users and strangers are read here. Only regular files are read, so that no pipe,
// device or socket can block the program. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace longspan {

/// Size limit in bytes of a file that people write and that is read whole: configurations,
/// config.json, templates. The parsed file takes at most about 30 times as much memory.
inline constexpr int64_t kMaxSettingsBytes = int64_t{16} << 20;
/// Size limit in bytes of a table that programs write and that grows with a model or a run: indexes
/// of shards, logs, tables of checksums, tokenizers.
inline constexpr int64_t kMaxTableBytes = int64_t{1} << 30;
/// Size limit in bytes of one line of a log. The log itself has no limit.
inline constexpr int64_t kMaxLineBytes = int64_t{1} << 30;
/// No limit other than memory: for data sets, which may be one large list, and for their lines.
inline constexpr int64_t kAnySize = INT64_MAX;

/// Gives other bytes than the file's own: decompressed ones.
class ByteFilter {
 public:
  virtual ~ByteFilter() = default;
  /// Reads up to `num_bytes` more; returns 0 at the end.
  virtual size_t read(char* to, size_t num_bytes) = 0;
};

/// A regular file, open for reading. `what`: its purpose ("configuration file"), for errors.
class InputFile {
 public:
  /// Throws UserError, with the path and the wanted kind of file: no such file, no permission, a
  /// folder, a pipe, a device or a socket, or a cycle of links. Never waits for another process.
  InputFile(const std::string& path, std::string_view what);
  /// Returns nullopt where the name does not exist; otherwise opens the file as the constructor
  /// does.
  static std::optional<InputFile> open_if_there(const std::string& path, std::string_view what);
  /// Takes over an open descriptor of a file that this process has made. `path`: for errors.
  static InputFile of_descriptor(int descriptor, const std::string& path, std::string_view what) {
    return {path, what, descriptor};
  }

  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  /// For mmap, pread and posix_fadvise. Closed with this object.
  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  const std::string& what() const { return what_; }
  /// Bytes at the time of opening.
  int64_t size() const { return size_; }
  /// Reads up to `num_bytes` more; returns 0 at the end of the file. Throws UserError.
  size_t read(char* to, size_t num_bytes);
  /// Goes back to the beginning.
  void rewind();
  /// From now on, read() gives the bytes of a filter. `make` makes the filter from the open
  /// descriptor, again after rewind().
  void filter_by(std::function<std::unique_ptr<ByteFilter>(int)> make);
  /// Returns the whole file, unchanged. Throws UserError where the file has more than `most_bytes`.
  std::string read_all(int64_t most_bytes);

 private:
  InputFile(const std::string& path, std::string_view what, int descriptor);

  std::string path_, what_;
  int descriptor_ = -1;
  int64_t size_ = 0;
  std::function<std::unique_ptr<ByteFilter>(int)> make_filter_;
  std::unique_ptr<ByteFilter> filter_;
};

/// Reads a file line by line. Throws UserError where a line has more than `most_bytes`.
class LineReader {
 public:
  explicit LineReader(InputFile file, int64_t most_bytes = kMaxLineBytes);

  /// Reads the next line without its line feed; returns false at the end. Drops a byte order mark
  /// before the first line.
  bool next(std::string& line);
  /// Whether the last line of next() ended with the file, without a line feed.
  bool ended_with_file() const { return ended_with_file_; }
  /// The number of the last line of next(), from 1.
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

/// Returns the file's bytes without a byte order mark. Throws UserError as InputFile does, and
/// where the file has more than `most_bytes`.
std::string read_text_file(const std::string& path, std::string_view what,
                           int64_t most_bytes = kMaxSettingsBytes);
/// Returns nullopt where the name does not exist; otherwise the result of read_text_file().
std::optional<std::string> read_text_file_if_there(const std::string& path, std::string_view what,
                                                   int64_t most_bytes = kMaxSettingsBytes);

/// Whether the name exists, for any kind of entry. A broken link exists, and is an error when read.
bool is_there(const std::string& path);

/// Returns the first bytes of a file: all bytes of a shorter file, none of an unreadable file.
std::string first_bytes(const std::string& path, size_t num_bytes);

/// Returns the path of the last file that any thread opened; "" before the first. For messages
/// about unexpected errors.
std::string last_input_file();

/// Throws UserError unless the path is a readable regular file of at most `most_bytes`. For files
/// that another library opens by path.
void require_readable_file(const std::string& path, std::string_view what,
                           int64_t most_bytes = kMaxTableBytes);
/// The same, but accepts a name that does not exist.
void require_readable_file_if_there(const std::string& path, std::string_view what,
                                    int64_t most_bytes = kMaxTableBytes);

}  // namespace longspan
