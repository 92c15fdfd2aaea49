// Examples in a temporary file, which all processes of a machine read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/data/example_set.h"
#include "longspan/data/packed_bytes.h"
#include "longspan/input/input_file.h"

namespace longspan {

/// Converts an example to and from bytes, without its number.
void pack(const Example& example, PackedBytes& to);
Example unpack_example(std::string_view bytes, bool tokens_only = false);

/// Returns the folder of temporary files with examples: `cache_dir`, or if that is empty the
/// system's folder for temporary files.
std::string temporary_rows_folder(const std::string& cache_dir);

/// Writes examples one after the other, so that memory need not hold all examples. The file has no
/// name: the operating system deletes the file when no process has it open any more. Throws as
/// throw_disk_error() does (files/atomic_file.h), with folder, reason and remedy.
class ExampleFileWriter {
 public:
  /// Creates the file, and `folder` if the folder is missing. `key`: the key that names the folder,
  /// for errors.
  explicit ExampleFileWriter(std::string folder, std::string key = "cache_dir");
  ~ExampleFileWriter();
  ExampleFileWriter(const ExampleFileWriter&) = delete;
  ExampleFileWriter& operator=(const ExampleFileWriter&) = delete;

  /// Returns the path by which processes with the same /proc can open the file, during the lifetime
  /// of this object.
  std::string path() const;
  /// Opens the file for this process.
  InputFile open() const;

  /// Does not report a full disk. finish() reports a full disk, with the needed space.
  void add(const Example& example);
  /// Adds any bytes as a record (ExampleFile::record).
  void add_record(std::string_view bytes);
  /// Completes the file with a text for the file's readers. Throws if the disk was full. Only
  /// open() and publish() may be called afterwards.
  void finish(std::string_view note);
  /// Gives the finished file a name, which then exists with the whole file, also after a power cut.
  /// Replaces a file of that name.
  void publish(const std::string& path) const;

 private:
  void write(const void* data, int64_t num_bytes, int64_t place);
  void flush();
  [[noreturn]] void fail(const std::string& what, int error) const;

  std::string folder_, key_;
  int descriptor_ = -1;
  std::vector<int64_t> begins_;  // begin of each record, in bytes
  std::string buffer_;           // bytes not yet written
  int64_t num_written_ = 0;
  PackedBytes record_;
  int failure_ = 0;  // errno of the first failed write
};

/// An example of a stranger's file is refused unless it follows these rules and
/// holds_tokens_only().
struct ExampleRules {
  int64_t vocab_size = 0;  // tokens and labels are below
  std::optional<int64_t> num_documents = {};
};

/// A complete file of ExampleFileWriter, open for reading. Does not load the file into memory:
/// reads each example on request, from the page cache that all processes of the machine share.
/// Thread-safe. Throws UserError if the file's content has changed since the write.
class ExampleFile {
 public:
  /// `file` may have been opened before the writer wrote the first example. `rules`: given for a
  /// file that a stranger may have written.
  explicit ExampleFile(InputFile file, std::optional<ExampleRules> rules = std::nullopt);

  int64_t num_examples() const { return num_records_ - 1; }
  /// Returns the example at `place`, with Example::number = place.
  Example example(int64_t place) const;
  std::string note() const { return record(num_records_ - 1); }
  /// Returns the bytes of a record in [0, num_examples()].
  std::string record(int64_t place) const;

 private:
  void read(void* to, int64_t num_bytes, int64_t place) const;
  [[noreturn]] void fail(const std::string& reason) const;

  InputFile file_;
  std::optional<ExampleRules> rules_;
  int64_t num_records_ = 0, index_ = 0;  // index_: begin of the list of records
};

/// Whether the example has neither pictures nor columns.
bool holds_tokens_only(const Example& example);

/// Consecutive examples of a file, as a set. Each drawn example is a separate copy.
class ExamplesInFile final : public ExampleSet {
 public:
  ExamplesInFile(std::shared_ptr<const ExampleFile> file, int64_t begin, int64_t size)
      : file_(std::move(file)), begin_(begin), size_(size) {}

  int64_t size() const override { return size_; }
  ExamplePointer example(int64_t place) const override;

 private:
  std::shared_ptr<const ExampleFile> file_;
  int64_t begin_, size_;
};

}  // namespace longspan
