// Examples in a temporary file, which processes of a machine share.
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

/// Writes examples one after the other, so they need not all be in memory. The file has no name: it
/// disappears when no process has it open any more, however the processes end. Throws as
/// throw_disk_error (files/atomic_file.h), with folder, reason and remedy.
class ExampleFileWriter {
 public:
  /// Creates the file, and `folder` if it is missing.
  explicit ExampleFileWriter(std::string folder);
  ~ExampleFileWriter();
  ExampleFileWriter(const ExampleFileWriter&) = delete;
  ExampleFileWriter& operator=(const ExampleFileWriter&) = delete;

  /// Returns the path by which processes that share a /proc open the file, while this object lives.
  std::string path() const;
  /// Opens the file for this process.
  InputFile open() const;

  /// Does not report a full disk, so that finish() can say how much space was needed.
  void add(const Example& example);
  /// Completes the file with a text for its readers. Throws if the disk was full. Call no other
  /// member afterwards.
  void finish(std::string_view note);

 private:
  void add_record(std::string_view bytes);
  void write(const void* data, int64_t num_bytes, int64_t place);
  void flush();
  [[noreturn]] void fail(const std::string& what, int error) const;

  std::string folder_;
  int descriptor_ = -1;
  std::vector<int64_t> begins_;  // of the records
  std::string buffer_;           // not yet written
  int64_t num_written_ = 0;
  PackedBytes record_;
  int failure_ = 0;  // errno of the first failed write
};

/// A complete file of ExampleFileWriter, open for reading. Holds none of it in memory: reads each
/// example on request, from pages that all processes of the machine share. Thread-safe. Throws
/// UserError where the file is not as it was written.
class ExampleFile {
 public:
  /// `file` may have been opened before the writer began.
  explicit ExampleFile(InputFile file);

  int64_t num_examples() const { return num_records_ - 1; }
  /// Returns the example at `place`, with that number.
  Example example(int64_t place) const;
  std::string note() const { return record(num_records_ - 1); }

 private:
  std::string record(int64_t place) const;
  void read(void* to, int64_t num_bytes, int64_t place) const;
  [[noreturn]] void fail(const std::string& reason) const;

  InputFile file_;
  int64_t num_records_ = 0, index_ = 0;  // index_: where the list of the records' places begins
};

/// Consecutive examples of a file. A drawn example is a copy of its own.
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
