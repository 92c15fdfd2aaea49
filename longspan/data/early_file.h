// Examples in a temporary file that processes of the machine read while it is written.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "longspan/data/example_set.h"
#include "longspan/input/input_file.h"

namespace longspan {

/// Writes records in any order. The file has no name, as that of ExampleFileWriter.
class EarlyFileWriter {
 public:
  /// Creates the file for `num_records` records. Throws as throw_disk_error() does.
  EarlyFileWriter(std::string folder, int64_t num_records);
  ~EarlyFileWriter();
  EarlyFileWriter(const EarlyFileWriter&) = delete;
  EarlyFileWriter& operator=(const EarlyFileWriter&) = delete;

  /// Return the path for processes with the same /proc, and the file for this process.
  std::string path() const;
  InputFile open() const;

  /// Writes record `number`, once. Other processes can read the record when this function has
  /// returned. Throws as throw_disk_error() does.
  void write(int64_t number, std::string_view bytes);

 private:
  void write_at(int64_t place, std::string_view bytes);

  std::string folder_;
  int descriptor_ = -1;
  int64_t end_ = 0;
};

/// The file, open for reading. Thread-safe. Throws UserError for a record that is not as it was
/// written.
class EarlyFile {
 public:
  explicit EarlyFile(InputFile file) : file_(std::move(file)) {}

  /// Returns a record that has been written.
  std::string record(int64_t number) const;

 private:
  void read(void* to, int64_t num_bytes, int64_t place) const;

  InputFile file_;
};

/// Consecutive records of the file, as a set of examples. An example must have been written before
/// it is drawn.
class EarlyExamples final : public ExampleSet {
 public:
  EarlyExamples(std::shared_ptr<const EarlyFile> file, int64_t begin, int64_t size)
      : file_(std::move(file)), begin_(begin), size_(size) {}

  int64_t size() const override { return size_; }
  ExamplePointer example(int64_t place) const override;

 private:
  std::shared_ptr<const EarlyFile> file_;
  int64_t begin_, size_;
};

}  // namespace longspan
