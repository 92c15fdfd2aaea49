// The files that a run depends on, and their contents. No torch.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/files/file_digest.h"

namespace longspan {

struct DataSettings;
struct MethodSettings;
struct ModelSettings;
struct PreferenceSettings;

/// The sections of the configuration that name or choose files.
struct ContentSettings {
  const ModelSettings& model;
  const MethodSettings& method;
  const PreferenceSettings& preferences;
  const DataSettings& data;
};

/// The role of a file in a run.
enum class FileRole {
  kModelConfig,
  kModelWeights,
  kTokenizer,
  kMergedAdapter,  ///< merged into the model before training
  kAdapter,        ///< trained further
  kReference,      ///< of the reference model, including its adapters
  kTrainingData,
  kEvaluationData,
};
/// Returns the name for messages and checkpoints, e.g. "model weights", "training data".
std::string_view name_of(FileRole role);

struct RunFile {
  FileRole role;
  std::string name;      // name in its folder
  std::string path;      // absolute, as seen by rank 0
  bool decides = false;  // true: other contents mean another run
  FileStamp stamp;
  std::optional<uint64_t> digest = 0;  // as digest_from_blocks; nullopt: not readable
};
using RunContents = std::vector<RunFile>;

/// True if what the run computes depends on the weights of model_name_or_path, also after a resume.
bool base_weights_decide(const MethodSettings& method, const PreferenceSettings& preferences);

/// Lists the files without stamps and digests: weights, config.json and quantization of the model,
/// the tokenizer's files with the chat template, adapters, the reference model, data sets of
/// training and evaluation. `decides` is false for config.json, most of which has no effect on a
/// resumed run (RunIdentity::stored_numbers has what it says of the weights). `decides` is also
/// false for the weights of a fully trained model, since a checkpoint contains the weights, unless
/// the model is also the reference. Throws UserError.
RunContents files_of_run(const ContentSettings& settings);

/// A file whose contents have changed.
struct ChangedFile {
  FileRole role;
  std::string path, how;    // how: "has 7 bytes (XXH64 ...) and had 8 (...)", "is new", "is gone"
  std::string consequence;  // a sentence: why the change is refused, or its effect
  bool decides = false;
  bool makes_rows = false;  // matters only if it changes the training rows
  bool was_read = true;     // false: unreadable at the start, so a change is unknown
};

/// Returns the files whose contents differ. Ignores the files' folders, and the names of data
/// files. Empty if one of the lists is empty. A file that could not be read for `then` has
/// `was_read` and `decides` false. A file that cannot be read for `now` is left out, since
/// read_contents names it.
std::vector<ChangedFile> changed_files(const RunContents& then, const RunContents& now);

/// Convert to and from the JSON of a checkpoint. Reading throws nlohmann's exceptions, or
/// std::invalid_argument for an invalid digest or role.
nlohmann::ordered_json json_of_contents(const RunContents& contents);
RunContents contents_from(const nlohmann::ordered_json& json);

}  // namespace longspan
