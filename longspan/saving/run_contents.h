// The files that a run depends on: which they are, and what is in them. No torch.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/checkpoint/file_digest.h"

namespace longspan {

struct Config;

/// What a file is to the run.
enum class FileRole {
  kModelConfig,
  kModelWeights,
  kTokenizer,
  kMergedAdapter,  ///< merged into the model before it is trained
  kAdapter,        ///< trained on
  kReference,      ///< of the reference model, its adapters too
  kTrainingData,
  kEvaluationData,
};
/// In messages and in checkpoints: "model weights", "training data", ...
std::string_view name_of(FileRole role);

struct RunFile {
  FileRole role;
  std::string name;      // in its folder
  std::string path;      // where it lies for rank 0, absolute
  bool decides = false;  // other contents would make another run of it
  FileStamp stamp;
  std::optional<uint64_t> digest = 0;  // as digest_from_blocks; nullopt: it could not be read
};
using RunContents = std::vector<RunFile>;

/// The files by name, without stamps and digests: weights and config.json of the model, the
/// tokenizer's files with the chat template, adapters, the reference model, data sets of training
/// and evaluation. `decides` is false for the weights of a fully trained model, since a checkpoint
/// brings its own, unless the reference is made of them; and for a config.json, most of which
/// decides nothing. Throws UserError.
RunContents files_of_run(const Config& config);

/// A file that is not what it was.
struct ChangedFile {
  FileRole role;
  std::string path, how;    // how: "has 7 bytes (XXH64 ...) and had 8 (...)", "is new", "is gone"
  std::string consequence;  // in a sentence: why it is refused, or what of it counts
  bool decides = false;
  bool makes_rows = false;  // it decides by the rows of training alone
  bool was_read = true;     // then; whether it has changed is not known otherwise
};

/// The files whose contents differ. Where files lie does not matter, nor what data files are
/// called. Empty where one of the lists is empty. A file that could not be read then does not
/// decide. One that cannot be read now is left out, since read_contents names it.
std::vector<ChangedFile> changed_files(const RunContents& then, const RunContents& now);

/// To the JSON of a checkpoint, and back. Reading throws nlohmann's exceptions, or
/// std::invalid_argument for a digest or a role that is none.
nlohmann::ordered_json json_of_contents(const RunContents& contents);
RunContents contents_from(const nlohmann::ordered_json& json);

}  // namespace longspan
