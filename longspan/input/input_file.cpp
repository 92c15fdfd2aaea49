#include "longspan/input/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "longspan/base/user_error.h"

namespace longspan {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
/// Bytes of one read.
constexpr size_t kPart = size_t{1} << 20;

/// Returns the kind of an entry that is no regular file, and the remedy.
std::string other_kind(mode_t mode) {
  constexpr const char* kRemedy = ". Write what it gives into a file, and name that";
  return S_ISDIR(mode)    ? "it is a folder; wanted is a file"
         : S_ISFIFO(mode) ? fmt::format("it is a pipe; wanted is a regular file{}", kRemedy)
         : S_ISSOCK(mode) ? fmt::format("it is a socket; wanted is a regular file{}", kRemedy)
                          : fmt::format("it is a device; wanted is a regular file{}", kRemedy);
}

[[noreturn]] void refuse(std::string_view what, const std::string& path,
                         const std::string& reason) {
  throw UserError(fmt::format("cannot read the {} {}: {}", what, path, reason));
}

std::string reason_of(int error) {
  if (error == ELOOP) return "its symbolic links lead in a circle; name a file, or a link to one";
  return std::strerror(error);
}

/// Formats bytes or MiB.
std::string size_text(int64_t num_bytes) {
  if (num_bytes < 1 << 20) return fmt::format("{} bytes", num_bytes);
  return fmt::format("{:.0f} MiB", static_cast<double>(num_bytes) / (1 << 20));
}

[[noreturn]] void refuse_size(std::string_view what, const std::string& path, int64_t most_bytes) {
  refuse(what, path,
         fmt::format("it has more than {}, the most that is read of such a file; is it the one "
                     "that is meant?",
                     size_text(most_bytes)));
}

/// Returns the descriptor, or -1 where the name does not exist. Throws UserError for other errors.
int open_regular(const std::string& path, std::string_view what) {
  if (path.find('\0') != std::string::npos) {
    refuse(what, path.substr(0, path.find('\0')), "its name goes on behind a NUL character");
  }
  // Checks the kind before opening, since opening alone starts some devices.
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return -1;
    refuse(what, path, reason_of(errno));
  }
  if (!S_ISREG(status.st_mode)) refuse(what, path, other_kind(status.st_mode));
  // O_NONBLOCK: another kind of file may have taken the name meanwhile. Some files of the kernel
  // look regular and block until something happens; these answer EAGAIN.
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return -1;
    refuse(what, path, reason_of(errno));
  }
  return descriptor;
}

class LastFile {
 public:
  void set(const std::string& path) {
    const std::lock_guard lock(mutex_);
    path_ = path;
  }
  std::string get() {
    const std::lock_guard lock(mutex_);
    return path_;
  }

 private:
  std::mutex mutex_;
  std::string path_;
};

/// Never destroyed: threads may read until the process ends.
LastFile& last_file() {
  static auto& file = *new LastFile;
  return file;
}

}  // namespace

std::string last_input_file() { return last_file().get(); }

InputFile::InputFile(const std::string& path, std::string_view what, int descriptor)
    : path_(path), what_(what), descriptor_(descriptor) {
  struct stat status{};
  const int error = ::fstat(descriptor_, &status) == 0 ? 0 : errno;
  if (error == 0 && S_ISREG(status.st_mode)) {
    size_ = status.st_size;
    last_file().set(path_);
    return;
  }
  ::close(std::exchange(descriptor_, -1));
  refuse(what_, path_, error != 0 ? reason_of(error) : other_kind(status.st_mode));
}

InputFile::InputFile(const std::string& path, std::string_view what)
    : InputFile(path, what, [&] {
        const int descriptor = open_regular(path, what);
        if (descriptor < 0) refuse(what, path, reason_of(errno));
        return descriptor;
      }()) {}

std::optional<InputFile> InputFile::open_if_there(const std::string& path, std::string_view what) {
  const int descriptor = open_regular(path, what);
  if (descriptor < 0) return std::nullopt;
  return InputFile(path, what, descriptor);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      what_(std::move(other.what_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_),
      make_filter_(std::move(other.make_filter_)),
      filter_(std::move(other.filter_)) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(what_, other.what_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  std::swap(make_filter_, other.make_filter_);
  std::swap(filter_, other.filter_);
  return *this;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

size_t InputFile::read(char* to, size_t num_bytes) {
  if (filter_) return filter_->read(to, num_bytes);
  for (;;) {
    const ssize_t num_read = ::read(descriptor_, to, num_bytes);
    if (num_read >= 0) return static_cast<size_t>(num_read);
    if (errno != EINTR) refuse(what_, path_, reason_of(errno));
  }
}

void InputFile::rewind() {
  if (::lseek(descriptor_, 0, SEEK_SET) != 0) refuse(what_, path_, reason_of(errno));
  if (filter_) filter_ = make_filter_(descriptor_);
}

void InputFile::filter_by(std::function<std::unique_ptr<ByteFilter>(int)> make) {
  make_filter_ = std::move(make);
  filter_ = make_filter_(descriptor_);
}

std::string InputFile::read_all(int64_t most_bytes) {
  if (size_ > most_bytes) refuse_size(what_, path_, most_bytes);
  try {
    std::string text;
    // The last read asks for bytes past the end.
    text.reserve(static_cast<size_t>(std::min(size_, int64_t{1} << 32)) + kPart);
    for (;;) {
      const size_t size = text.size();
      text.resize(size + kPart);
      const size_t num_read = read(text.data() + size, kPart);
      text.resize(size + num_read);
      if (num_read == 0) return text;
      // A file may grow while it is read, and files of the kernel report size 0.
      if (static_cast<int64_t>(text.size()) > most_bytes) refuse_size(what_, path_, most_bytes);
    }
  } catch (const std::bad_alloc&) {
    refuse(what_, path_, fmt::format("there is no memory for its {}", size_text(size_)));
  }
}

LineReader::LineReader(InputFile file, int64_t most_bytes)
    : file_(std::move(file)), buffer_(kPart, '\0'), most_bytes_(most_bytes) {}

void LineReader::rewind() {
  file_.rewind();
  begin_ = end_ = 0;
  number_ = 0;
  ended_with_file_ = false;
}

bool LineReader::next(std::string& line) {
  line.clear();
  bool found = false;
  for (;;) {
    if (begin_ == end_) {
      begin_ = 0;
      end_ = file_.read(buffer_.data(), buffer_.size());
      if (end_ == 0) break;
    }
    found = true;
    const char* const begin = buffer_.data() + begin_;
    const auto* const feed = static_cast<const char*>(std::memchr(begin, '\n', end_ - begin_));
    const size_t length = feed == nullptr ? end_ - begin_ : static_cast<size_t>(feed - begin);
    if (static_cast<int64_t>(line.size() + length) > most_bytes_) {
      throw UserError(fmt::format("{}, line {}: it has more than {}, the most that a line may have",
                                  file_.path(), number_ + 1, size_text(most_bytes_)));
    }
    line.append(begin, length);
    begin_ += length + (feed == nullptr ? 0 : 1);
    if (feed != nullptr) break;
  }
  ended_with_file_ = found && end_ == 0;
  if (!found) return false;
  if (++number_ == 1 && line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
  return true;
}

namespace {

std::string text_of(InputFile file, int64_t most_bytes) {
  std::string text = file.read_all(most_bytes);
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  return text;
}

}  // namespace

std::string read_text_file(const std::string& path, std::string_view what, int64_t most_bytes) {
  return text_of(InputFile(path, what), most_bytes);
}

std::optional<std::string> read_text_file_if_there(const std::string& path, std::string_view what,
                                                   int64_t most_bytes) {
  std::optional<InputFile> file = InputFile::open_if_there(path, what);
  if (!file) return std::nullopt;
  return text_of(std::move(*file), most_bytes);
}

bool is_there(const std::string& path) {
  struct stat status{};
  return ::lstat(path.c_str(), &status) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

std::string first_bytes(const std::string& path, size_t num_bytes) {
  std::string text;
  try {
    InputFile file(path, "file");
    text.resize(num_bytes);
    size_t size = 0;
    while (size < num_bytes) {
      const size_t num_read = file.read(text.data() + size, num_bytes - size);
      if (num_read == 0) break;
      size += num_read;
    }
    text.resize(size);
  } catch (const UserError&) {
    text.clear();
  }
  return text;
}

void require_readable_file(const std::string& path, std::string_view what, int64_t most_bytes) {
  const InputFile file(path, what);
  if (file.size() > most_bytes) refuse_size(what, path, most_bytes);
}

void require_readable_file_if_there(const std::string& path, std::string_view what,
                                    int64_t most_bytes) {
  const std::optional<InputFile> file = InputFile::open_if_there(path, what);
  if (file && file->size() > most_bytes) refuse_size(what, path, most_bytes);
}

}  // namespace longspan
