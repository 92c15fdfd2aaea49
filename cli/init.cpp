// `longspan init`: makes a random checkpoint from a config.json.
#include <fmt/format.h>

#include <filesystem>

#include "cli/commands.h"
#include "cli/options.h"
#include "longspan/base/user_error.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/files/folder_lock.h"
#include "longspan/memory/machine_memory.h"
#include "longspan/models/composite.h"
#include "longspan/models/dtype_words.h"
#include "longspan/models/family.h"
#include "longspan/models/model_config.h"
#include "longspan/models/parameter_count.h"
#include "longspan/text/bytes.h"
#include "longspan/text/counted.h"
#include "longspan/text/print.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

namespace {

namespace fs = std::filesystem;

at::ScalarType dtype_of_init(const std::string& name) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    if (name == long_name_of(dtype)) return dtype;
  }
  throw UserError(fmt::format("init: --dtype {}: wanted is {} or {}", name,
                              long_name_of(at::kFloat), long_name_of(at::kBFloat16)));
}

/// The whole model is made before it is written.
void require_room_for(const ModelConfig& config, int64_t num_parameters, at::ScalarType dtype) {
  // A layer has about a dozen tensors, each with a name and a spec, whatever their size.
  constexpr int64_t kBytesOfLayer = 16384;
  // Neither product can overflow: parameters are at most kMostCounted, layers kMostIndexed.
  const int64_t num_bytes =
      num_parameters * (dtype == at::kFloat ? 4 : 2) + config.spec.num_layers * kBytesOfLayer;
  const MachineMemory machine = machine_memory();
  if (num_bytes <= machine.bytes) return;
  throw UserError(fmt::format(
      "init: a model of {} has {:.4g} parameters, which need {}, and {}. Nothing was written. "
      "Choose smaller sizes in config.json.",
      describe_sizes(config.spec), static_cast<double>(num_parameters), name_bytes(num_bytes),
      machine.text()));
}

int run_init(const Arguments& arguments) {
  const Options options("init", arguments, {"config", "output", "seed", "dtype", "tokenizer"});
  const std::string output = options.required("output");
  const at::ScalarType dtype = dtype_of_init(options.text("dtype").value_or("float32"));
  const int64_t seed = options.whole_number("seed", 0).value_or(42);
  ModelConfig config = load_model_config(options.required("config"));
  if (takes_pictures(config)) {
    config = with_pictures(config);
  } else if (is_composite(config)) {
    throw UserError(fmt::format(
        "init: {} is a model of texts and pictures, and only its language model can be made. Give "
        "a file that holds its text_config alone, with its model_type.",
        config.architecture));
  }
  require_free_folder("init", output);
  std::error_code error;
  std::string source = fs::path(options.required("config")).string();
  if (!fs::is_directory(source, error)) source = fs::path(source).parent_path().string();
  if (const auto folder = options.text("tokenizer")) {
    source = *folder;
    const int64_t vocab_size = Tokenizer::load(source).vocab_size();
    if (vocab_size > config.spec.vocab_size) {
      throw UserError(fmt::format(
          "init: the tokenizer has {}, config.json's vocab_size is {}; it must be at least "
          "as large",
          counted(vocab_size, "token"), config.spec.vocab_size));
    }
  }
  const int64_t num_parameters = parameter_count(config.spec);
  require_room_for(config, num_parameters, dtype);
  const std::vector<NamedTensor> parameters =
      random_parameters(config, static_cast<uint64_t>(seed), dtype);
  const FolderLock lock("--output", output);
  save_model_folder(output, config, parameters, dtype, source.empty() ? "." : source);
  print_out("Made a random {} with {:.1f} million parameters in {}\n", config.model_type,
            static_cast<double>(num_parameters) / 1e6, output);
  return 0;
}

constexpr const char* kInitHelp =
    R"(Makes a model folder with random weights, for tests and for training from nothing.

  longspan init --config config.json --output models/small --tokenizer models/my-tokenizer

  --config FILE       config.json of a Hugging Face model (model_type {}), or its folder
  --output FOLDER     where the model goes; must not exist, or be empty
  --tokenizer FOLDER  copies the tokenizer files from there (else from beside config.json)
  --seed N            the same seed gives the same weights on every machine [42]
  --dtype NAME        float32 or bfloat16 [float32]
)";

}  // namespace

Command init_command() {
  return {"init", "make a random model folder from a config.json",
          fmt::format(kInitHelp, model_types()), run_init, /*computes=*/true};
}

}  // namespace longspan
