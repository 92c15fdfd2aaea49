// What fuzz targets share. A reader takes any bytes, and returns or throws UserError; everything
// else is a finding: other exceptions, signals, what the sanitizers see, more time or memory than
// tests/fuzz/run.py allows.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "longspan/text/tokenizer.h"

namespace longspan::fuzz {

/// Puts a reader into the table of its program.
struct Registration {
  Registration(const char* name, void (*read)(std::string_view input));
};

/// FUZZ_READER(name) { ... input ... }: calls a reader of the program as the program calls it.
#define FUZZ_READER(name)                                                                      \
  static void reader_of_##name(std::string_view input);                                        \
  static const ::longspan::fuzz::Registration registration_of_##name(#name, reader_of_##name); \
  static void reader_of_##name([[maybe_unused]] std::string_view input)

/// Takes the input's first byte away and says which of `count` ways it chooses; '0' is the first.
int choose(std::string_view& input, int count);

/// The pieces between lines "%%", `count` of them; missing ones are empty, the last one may hold
/// such lines.
std::vector<std::string> pieces(std::string_view input, size_t count);

/// Without their ends; the last one may be empty.
std::vector<std::string> lines(std::string_view input);

/// Ends the process unless it holds; `what` is promised of every input.
void require(bool holds, const char* what);

/// A folder for the files of one input, under the same name for each. One lives at a time.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  /// Makes the folders that are missing; returns the file's path.
  std::string write(const std::string& name, std::string_view bytes) const;

 private:
  std::string path_;
};

/// A folder that stays as long as the process, for what readers need beside their input.
const std::string& lasting_folder();

/// Byte-level BPE of few tokens, with chatml's: its folder, and loaded.
const std::string& small_tokenizer_folder();
const Tokenizer& small_tokenizer();

/// config.json of a model of that tokenizer: one block, 8 channels.
extern const char* const kSmallModel;

}  // namespace longspan::fuzz
