// Shared parts of fuzz targets. A reader takes any bytes, and returns or throws UserError.
// Everything else is a finding: other exceptions, signals, reports of sanitizers, more time or
// memory than tests/fuzz/run.py allows.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "longspan/text/tokenizer.h"

namespace longspan::fuzz {

/// Adds a reader to its program's table.
struct Registration {
  Registration(const char* name, void (*read)(std::string_view input));
};

/// FUZZ_READER(name) { ... input ... }: calls a reader in the same way as the program.
#define FUZZ_READER(name)                                                                      \
  static void reader_of_##name(std::string_view input);                                        \
  static const ::longspan::fuzz::Registration registration_of_##name(#name, reader_of_##name); \
  static void reader_of_##name([[maybe_unused]] std::string_view input)

/// Removes the input's first byte. Returns the number from 0 to count - 1 that the byte encodes;
/// '0' encodes 0.
int choose(std::string_view& input, int count);

/// Splits the input at lines "%%" into `count` pieces. Missing pieces are empty. The last piece may
/// contain such lines.
std::vector<std::string> pieces(std::string_view input, size_t count);

/// Returns the input's lines without line ends. The last line may be empty.
std::vector<std::string> lines(std::string_view input);

/// Ends the process unless `holds`; `what` names the property that every input must have.
void require(bool holds, const char* what);

/// A folder for the files of one input, with the same name each time. Only one may exist at a time.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  /// Writes a file and creates missing folders; returns the file's path.
  std::string write(const std::string& name, std::string_view bytes) const;

 private:
  std::string path_;
};

/// A folder that exists until the process ends, for files that readers need besides their input.
const std::string& lasting_folder();

/// A byte-level BPE tokenizer of few tokens with the chatml tokens: its folder, and loaded.
const std::string& small_tokenizer_folder();
const Tokenizer& small_tokenizer();

/// config.json of a model for that tokenizer: one block, 8 channels.
extern const char* const kSmallModel;

}  // namespace longspan::fuzz
