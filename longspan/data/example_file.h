// Examples in a temporary file, which all processes of a machine read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/data/example_set.h"
#include "longspan/data/packed_bytes.h"
#include "longspan/input/input_file.h"

namespace longspan {

/// Writes examples one after the other, so that memory need not hold all examples. The file has no
/// name: the operating system deletes the file when no process has it open any more. Throws as
/// throw_disk_error() does (files/atomic_file.h), with folder, reason and remedy.
class ExampleFileWriter {
 public:
  /// Creates the file, and `folder` if the folder is missing.
  explicit ExampleFileWriter(std::string folder);
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
  /// Completes the file with a text for the file's readers. Throws if the disk was full. No other
  /// member may be called afterwards.
  void finish(std::string_view note);

 private:
  void add_record(std::string_view bytes);
  void write(const void* data, int64_t num_bytes, int64_t place);
  void flush();
  [[noreturn]] void fail(const std::string& what, int error) const;

  std::string folder_;
  int descriptor_ = -1;
  std::vector<int64_t> begins_;  // begin of each record, in bytes
  std::string buffer_;           // bytes not yet written
  int64_t num_written_ = 0;
  PackedBytes record_;
  int failure_ = 0;  // errno of the first failed write
};

/// A complete file of ExampleFileWriter, open for reading. Does not load the file into memory:
/// reads each example on request, from the page cache that all processes of the machine share.
/// Thread-safe. Throws UserError if the file's content has changed since the write.
class ExampleFile {
 public:
  /// `file` may have been opened before the writer wrote the first example.
  explicit ExampleFile(InputFile file);

  int64_t num_examples() const { return num_records_ - 1; }
  /// Returns the example at `place`, with Example::number = place.
  Example example(int64_t place) const;
  std::string note() const { return record(num_records_ - 1); }

 private:
  std::string record(int64_t place) const;
  void read(void* to, int64_t num_bytes, int64_t place) const;
  [[noreturn]] void fail(const std::string& reason) const;

  InputFile file_;
  int64_t num_records_ = 0, index_ = 0;  // index_: begin of the list of records
};

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
