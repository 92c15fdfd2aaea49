#include "longspan/data/example_file.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "longspan/account/disk_model.h"
#include "longspan/base/user_error.h"
#include "longspan/files/atomic_file.h"
#include "longspan/files/checksum.h"
#include "longspan/files/left_temporary.h"
#include "longspan/memory/nameless_file.h"
#include "longspan/rows/ignore_label.h"
#include "longspan/text/bytes.h"

namespace longspan {
namespace {

// The file: a header, records (bytes and their checksum), and the places where the records begin
// and the last one ends. A record is an example, or, as the last one, the note. The header is
// written at the end.
struct Header {
  std::array<char, 8> magic = {'L', 'S', 'E', 'X', 'A', 'M', 'P', '1'};
  int64_t num_records = 0, index = 0;  // index: where the places are
  uint64_t checksum = 0;               // of all before

  uint64_t own_checksum() const {
    Xxh64 hash;
    hash.add(this, offsetof(Header, checksum));
    return hash.value();
  }
};

constexpr const char* kWhat = "encoded data set";
constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr int64_t kChecksumBytes = sizeof(uint64_t);
constexpr int64_t kPlaceBytes = sizeof(int64_t);
constexpr int8_t kUndefined = -1;  // dtype of a tensor that is not defined

uint64_t checksum_of(std::string_view bytes) {
  Xxh64 hash;
  hash.add(bytes.data(), bytes.size());
  return hash.value();
}

void pack(const at::Tensor& tensor, PackedBytes& to) {
  if (!tensor.defined()) return to.add(kUndefined);
  const at::Tensor x = tensor.contiguous();
  to.add(static_cast<int8_t>(x.scalar_type()));
  to.add_list(x.sizes().vec());
  to.add_text({static_cast<const char*>(x.const_data_ptr()), x.nbytes()});
}

at::Tensor unpack_tensor(UnpackedBytes& from) {
  const int8_t dtype = from.next<int8_t>();
  if (dtype == kUndefined) return {};
  const std::vector<int64_t> sizes = from.next_list<int64_t>();
  const std::string_view bytes = from.next_text();
  at::Tensor x = at::empty(sizes, static_cast<at::ScalarType>(dtype));
  if (x.nbytes() != bytes.size()) throw std::logic_error("a tensor of an example file");
  if (!bytes.empty()) std::memcpy(x.mutable_data_ptr(), bytes.data(), bytes.size());
  return x;
}

void pack(const Picture& picture, PackedBytes& to) {
  to.add(std::ssize(picture.files));
  for (const std::string& file : picture.files) to.add_text(file);
  to.add(static_cast<int8_t>(picture.is_video));
  to.add_list(std::vector<int64_t>{picture.grid.t, picture.grid.h, picture.grid.w});
  to.add(picture.num_features);
  to.add(picture.checksum);
  to.add_list(picture.frames);
  to.add(picture.version);
  to.add(static_cast<int8_t>(picture.is_two_way));
  to.add_list(picture.file_checksums);
  to.add_text(picture.record.text);
}

Picture unpack_picture(UnpackedBytes& from) {
  Picture picture;
  for (int64_t left = from.next<int64_t>(); left > 0; --left) {
    picture.files.emplace_back(from.next_text());
  }
  picture.is_video = from.next<int8_t>() != 0;
  const std::vector<int64_t> grid = from.next_list<int64_t>();
  picture.grid = {grid.at(0), grid.at(1), grid.at(2)};
  picture.num_features = from.next<int64_t>();
  picture.checksum = from.next<uint64_t>();
  picture.frames = from.next_list<int64_t>();
  picture.version = from.next<uint64_t>();
  picture.is_two_way = from.next<int8_t>() != 0;
  picture.file_checksums = from.next_list<uint64_t>();
  picture.record.text = from.next_text();
  return picture;
}

void pack(const Sample& document, PackedBytes& to) {
  to.add_list(document.input_ids);
  to.add_list(document.labels);
  to.add(std::ssize(document.columns));
  for (const auto& [name, column] : document.columns) {
    to.add_text(name);
    to.add(column.padding);
    pack(column.values, to);
  }
  pack(document.positions_AT, to);
  to.add(std::ssize(document.pictures));
  for (const Picture& picture : document.pictures) pack(picture, to);
}

Sample unpack_sample(UnpackedBytes& from, bool tokens_only) {
  Sample document;
  document.input_ids = from.next_list<int32_t>();
  document.labels = from.next_list<int32_t>();
  if (tokens_only) {
    // A number of columns, no positions, a number of pictures.
    const auto num_columns = from.next<int64_t>();
    const auto positions = from.next<int8_t>();
    const auto num_pictures = from.next<int64_t>();
    if (num_columns != 0 || positions != kUndefined || num_pictures != 0) {
      throw std::out_of_range("it has pictures or columns");
    }
    return document;
  }
  for (int64_t left = from.next<int64_t>(); left > 0; --left) {
    Column& column = document.columns[std::string(from.next_text())];
    column.padding = from.next<double>();
    column.values = unpack_tensor(from);
  }
  document.positions_AT = unpack_tensor(from);
  for (int64_t left = from.next<int64_t>(); left > 0; --left) {
    document.pictures.push_back(unpack_picture(from));
  }
  return document;
}

/// Throws std::out_of_range unless the model can be trained on the example.
void require_usable(const Example& example, const ExampleRules& rules) {
  const auto require = [](bool holds, const char* problem) {
    if (!holds) throw std::out_of_range(problem);
  };
  const int64_t num_documents = std::ssize(example.documents);
  require(num_documents == rules.num_documents.value_or(std::max<int64_t>(1, num_documents)),
          "it has another number of documents than its stage");
  for (const Sample& document : example.documents) {
    require(!document.input_ids.empty(), "a document is empty");
    require(document.input_ids.size() == document.labels.size(), "a token has no label");
    for (const int32_t id : document.input_ids) {
      require(id >= 0 && id < rules.vocab_size, "a token is not in the vocabulary");
    }
    for (const int32_t label : document.labels) {
      require(label == kIgnoreLabel || (label >= 0 && label < rules.vocab_size),
              "a label is not in the vocabulary");
    }
  }
  int64_t before = 0;
  for (const int64_t restart : example.position_restarts) {
    require(restart > before && restart < std::ssize(example.documents.front().input_ids),
            "its positions restart outside of it");
    before = restart;
  }
}

}  // namespace

void pack(const Example& example, PackedBytes& to) {
  to.add(static_cast<int8_t>(example.desirable));
  to.add_list(example.position_restarts);
  to.add_text(example.solution);
  to.add(std::ssize(example.documents));
  for (const Sample& document : example.documents) pack(document, to);
}

Example unpack_example(std::string_view bytes, bool tokens_only) {
  UnpackedBytes from(bytes);
  Example example;
  example.desirable = from.next<int8_t>() != 0;
  example.position_restarts = from.next_list<int64_t>();
  example.solution = std::string(from.next_text());
  for (int64_t left = from.next<int64_t>(); left > 0; --left) {
    example.documents.push_back(unpack_sample(from, tokens_only));
  }
  return example;
}

bool holds_tokens_only(const Example& example) {
  return std::ranges::all_of(example.documents, [](const Sample& document) {
    return document.columns.empty() && document.pictures.empty() &&
           !document.positions_AT.defined();
  });
}

std::string temporary_rows_folder(const std::string& cache_dir) {
  if (!cache_dir.empty()) return cache_dir;
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  return error ? "/tmp" : folder.string();  // clusters name folders that a machine lacks
}

ExampleFileWriter::ExampleFileWriter(std::string folder, std::string key)
    : folder_(std::move(folder)), key_(std::move(key)), num_written_(sizeof(Header)) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) fail(fmt::format("needs the folder {}, which cannot be made", folder_), error.value());
  descriptor_ = open_nameless(folder_);
  if (descriptor_ < 0) fail(fmt::format("needs a file in {}", folder_), errno);
}

ExampleFileWriter::~ExampleFileWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::string ExampleFileWriter::path() const {
  return fmt::format("/proc/{}/fd/{}", ::getpid(), descriptor_);
}

InputFile ExampleFileWriter::open() const {
  const int descriptor = ::dup(descriptor_);
  if (descriptor < 0) fail("cannot be opened", errno);
  return InputFile::of_descriptor(descriptor, path(), kWhat);
}

void ExampleFileWriter::add(const Example& example) {
  record_.clear();
  pack(example, record_);
  add_record(record_.bytes());
}

void ExampleFileWriter::add_record(std::string_view bytes) {
  begins_.push_back(num_written_ + std::ssize(buffer_));
  buffer_ += bytes;
  const uint64_t checksum = checksum_of(bytes);
  buffer_.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  if (buffer_.size() >= kBufferBytes) flush();
}

void ExampleFileWriter::flush() {
  write(buffer_.data(), std::ssize(buffer_), num_written_);
  num_written_ += std::ssize(buffer_);
  buffer_.clear();
}

void ExampleFileWriter::write(const void* data, int64_t num_bytes, int64_t place) {
  const char* from = static_cast<const char*>(data);
  while (num_bytes > 0 && failure_ == 0) {
    const ssize_t written = ::pwrite(descriptor_, from, static_cast<size_t>(num_bytes), place);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      failure_ = written < 0 ? errno : ENOSPC;
      return;
    }
    from += written;
    place += written;
    num_bytes -= written;
  }
}

void ExampleFileWriter::finish(std::string_view note) {
  add_record(note);
  flush();
  const Header unsigned_header{.num_records = std::ssize(begins_), .index = num_written_};
  begins_.push_back(num_written_);
  const int64_t num_places = std::ssize(begins_);
  write(begins_.data(), num_places * kPlaceBytes, num_written_);
  num_written_ += num_places * kPlaceBytes;
  begins_ = {};
  Header header = unsigned_header;
  header.checksum = header.own_checksum();
  write(&header, sizeof(header), 0);
  if (failure_ == 0) return;
  fail(fmt::format("needs {} in {}", name_bytes(num_written_), folder_), failure_);
}

void ExampleFileWriter::publish(const std::string& path) const {
  const std::filesystem::path target(path);
  const std::string temporary =
      (target.parent_path() / temporary_name(target.filename().string())).string();
  const std::string own = fmt::format("/proc/self/fd/{}", descriptor_);
  if (::linkat(AT_FDCWD, own.c_str(), AT_FDCWD, temporary.c_str(), AT_SYMLINK_FOLLOW) == 0) {
    if (::fsync(descriptor_) == 0 && ::rename(temporary.c_str(), path.c_str()) == 0) {
      return sync_folder(target.parent_path().string());
    }
    const int error = errno;
    ::unlink(temporary.c_str());
    fail(fmt::format("needs {} in {}", name_bytes(num_written_), folder_), error);
  }
  // A file system without files that have no name.
  AtomicFile file(path);
  InputFile written = open();
  written.rewind();
  std::string part(kBufferBytes, '\0');
  while (const size_t size = written.read(part.data(), part.size())) file.write(part.data(), size);
  file.commit();
}

void ExampleFileWriter::fail(const std::string& what, int error) const {
  throw_disk_error(
      error, fmt::format("The encoded data set {} ({}). {} The key {} names the folder.", what,
                         std::strerror(error), remedy_for(error), key_));
}

ExampleFile::ExampleFile(InputFile file, std::optional<ExampleRules> rules)
    : file_(std::move(file)), rules_(rules) {
  struct stat status{};
  if (::fstat(file_.descriptor(), &status) != 0) fail(std::strerror(errno));
  Header header;
  if (status.st_size < static_cast<off_t>(sizeof(header))) fail("it is incomplete");
  read(&header, sizeof(header), 0);
  if (header.magic != Header().magic || header.checksum != header.own_checksum()) {
    fail("its header is not whole");
  }
  const int64_t most_records = status.st_size / kPlaceBytes - 1;
  if (header.num_records < 1 || header.num_records > most_records ||
      header.index != status.st_size - (header.num_records + 1) * kPlaceBytes) {
    fail("it does not have the size that its header says");
  }
  num_records_ = header.num_records;
  index_ = header.index;
}

std::string ExampleFile::record(int64_t place) const {
  std::array<int64_t, 2> ends{};
  read(ends.data(), sizeof(ends), index_ + place * kPlaceBytes);
  const auto [begin, end] = ends;
  if (begin < static_cast<int64_t>(sizeof(Header)) || begin > index_ || end > index_ ||
      end < begin + kChecksumBytes) {
    fail(fmt::format("record {} has no place in it", place));
  }
  std::string bytes(static_cast<size_t>(end - begin), '\0');
  read(bytes.data(), std::ssize(bytes), begin);
  uint64_t checksum = 0;
  bytes.copy(reinterpret_cast<char*>(&checksum), sizeof(checksum), bytes.size() - sizeof(checksum));
  bytes.resize(bytes.size() - sizeof(checksum));
  if (checksum != checksum_of(bytes)) fail(fmt::format("record {} has another checksum", place));
  return bytes;
}

Example ExampleFile::example(int64_t place) const {
  if (place < 0 || place >= num_examples()) throw std::out_of_range("example of a file");
  const std::string bytes = record(place);
  Example example;
  if (rules_) {
    try {
      example = unpack_example(bytes, /*tokens_only=*/true);
      require_usable(example, *rules_);
    } catch (const std::out_of_range& problem) {
      fail(fmt::format("row {}: {}", place, problem.what()));
    }
  } else {
    example = unpack_example(bytes, /*tokens_only=*/false);
  }
  example.number = place;
  return example;
}

void ExampleFile::read(void* to, int64_t num_bytes, int64_t place) const {
  char* cursor = static_cast<char*>(to);
  while (num_bytes > 0) {
    const ssize_t got = ::pread(file_.descriptor(), cursor, static_cast<size_t>(num_bytes), place);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(std::strerror(errno));
    if (got == 0) fail("it ends early");
    cursor += got;
    place += got;
    num_bytes -= got;
  }
}

void ExampleFile::fail(const std::string& reason) const {
  if (rules_) {
    throw UserError(fmt::format(
        "{} has no rows to train on: {}. Set overwrite_cache: true to encode the data sets again.",
        file_.path(), reason));
  }
  throw UserError(fmt::format(
      "The temporary file of the encoded data set cannot be read as it was written: {}. Check the "
      "disk of its folder, or name another in cache_dir, and start again.",
      reason));
}

ExamplePointer ExamplesInFile::example(int64_t place) const {
  if (place < 0 || place >= size_) throw std::out_of_range("example of a set");
  return std::make_shared<const Example>(file_->example(begin_ + place));
}

}  // namespace longspan
