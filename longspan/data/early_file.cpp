#include "longspan/data/early_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/data/example_file.h"
#include "longspan/files/atomic_file.h"
#include "longspan/files/checksum.h"
#include "longspan/memory/nameless_file.h"

namespace longspan {
namespace {

// The file: the place of each record (0: it is not written yet), then the records, each with its
// size and the checksum of number and bytes.
constexpr int64_t kBytesOfPlace = sizeof(int64_t);
struct RecordHead {
  int64_t num_bytes;
  uint64_t checksum;
};

uint64_t checksum_of(int64_t number, std::string_view bytes) {
  Xxh64 hash;
  hash.add(&number, sizeof(number));
  hash.add(bytes.data(), bytes.size());
  return hash.value();
}

[[noreturn]] void refuse_record(const std::string& problem) {
  throw UserError(fmt::format(
      "The temporary file of the encoded data set cannot be read as it was written: {}. Check the "
      "disk of its folder, or name another in cache_dir, and start again.",
      problem));
}

[[noreturn]] void fail(const std::string& folder, int error) {
  throw_disk_error(error, fmt::format("The encoded data set needs a file in {} ({}). {} The key "
                                      "cache_dir names the folder.",
                                      folder, std::strerror(error), remedy_for(error)));
}

template <typename T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

}  // namespace

EarlyFileWriter::EarlyFileWriter(std::string folder, int64_t num_records)
    : folder_(std::move(folder)), end_(num_records * kBytesOfPlace) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  descriptor_ = open_nameless(folder_);
  if (descriptor_ < 0) fail(folder_, errno);
  if (::ftruncate(descriptor_, end_) != 0) {
    const int failure = errno;
    ::close(descriptor_);
    fail(folder_, failure);
  }
}

EarlyFileWriter::~EarlyFileWriter() { ::close(descriptor_); }

std::string EarlyFileWriter::path() const {
  return fmt::format("/proc/{}/fd/{}", ::getpid(), descriptor_);
}

InputFile EarlyFileWriter::open() const {
  const int descriptor = ::fcntl(descriptor_, F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0) fail(folder_, errno);
  return InputFile::of_descriptor(descriptor, path(), "encoded data set");
}

void EarlyFileWriter::write(int64_t number, std::string_view bytes) {
  const RecordHead head{std::ssize(bytes), checksum_of(number, bytes)};
  std::string record(bytes_of(head));
  record += bytes;
  write_at(end_, record);
  write_at(number * kBytesOfPlace, bytes_of(end_));
  end_ += std::ssize(record);
}

void EarlyFileWriter::write_at(int64_t place, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor_, bytes.data(), bytes.size(), place);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail(folder_, written < 0 ? errno : ENOSPC);
    bytes.remove_prefix(static_cast<size_t>(written));
    place += written;
  }
}

std::string EarlyFile::record(int64_t number) const {
  int64_t place = 0;
  read(&place, kBytesOfPlace, number * kBytesOfPlace);
  if (place == 0) refuse_record(fmt::format("row {} is not there", number));
  RecordHead head{};
  read(&head, sizeof(head), place);
  struct stat status{};
  const int64_t end =
      ::fstat(file_.descriptor(), &status) == 0 ? static_cast<int64_t>(status.st_size) : 0;
  std::string bytes;
  if (head.num_bytes >= 0 && head.num_bytes <= end - place) {
    bytes.resize(static_cast<size_t>(head.num_bytes));
    read(bytes.data(), head.num_bytes, place + static_cast<int64_t>(sizeof(head)));
    if (head.checksum == checksum_of(number, bytes)) return bytes;
  }
  refuse_record(fmt::format("row {} has another checksum", number));
}

void EarlyFile::read(void* to, int64_t num_bytes, int64_t place) const {
  char* cursor = static_cast<char*>(to);
  while (num_bytes > 0) {
    const ssize_t got = ::pread(file_.descriptor(), cursor, static_cast<size_t>(num_bytes), place);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) refuse_record(got < 0 ? std::strerror(errno) : "it ends early");
    cursor += got;
    place += got;
    num_bytes -= got;
  }
}

ExamplePointer EarlyExamples::example(int64_t place) const {
  if (place < 0 || place >= size_) throw std::out_of_range("example of a set");
  Example example = unpack_example(file_->record(begin_ + place));
  example.number = begin_ + place;
  return std::make_shared<const Example>(std::move(example));
}

}  // namespace longspan
