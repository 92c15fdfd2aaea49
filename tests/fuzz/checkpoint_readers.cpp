// Readers of a run's, a model's or a checkpoint's folder besides tensors, and of messages between
// ranks.
#include <fmt/format.h>

#include <filesystem>

#include "cli/commands.h"
#include "longspan/base/user_error.h"
#include "longspan/checkpoint/adapter_positions.h"
#include "longspan/checkpoint/chat_files.h"
#include "longspan/files/checksum_file.h"
#include "longspan/files/process_identity.h"
#include "longspan/liveness/beat.h"
#include "longspan/models/grouped_format.h"
#include "longspan/models/model_place.h"
#include "longspan/models/parse_model_config.h"
#include "longspan/models/rope_scaling.h"
#include "longspan/report/training_log.h"
#include "tests/fuzz/fuzz.h"
#if __has_include("longspan/files/file_list.h")
#include "longspan/files/file_list.h"
#include "longspan/files/lock_owner.h"
#define LONGSPAN_LISTS_FILES
#endif

namespace longspan {
namespace {

using fuzz::choose;
using fuzz::Folder;

FUZZ_READER(model_config) {
  const Folder folder;
  folder.write("config.json", input);
  const ModelConfig config = load_model_config(folder.path());
  fuzz::require(config.spec.num_layers > 0 && !config.spec.pattern.empty(),
                "a model has some size");
  for (const char* type : {"linear", "yarn", "llama3"}) stretched(config, type, 100'000, "config");
}

/// Keys of quantization in a file of their own. Ways: the formats.
FUZZ_READER(quantization_keys) {
  const auto formats = grouped_formats();
  const GroupedFormat& format = *formats[choose(input, static_cast<int>(formats.size()))];
  const Folder folder;
  folder.write("config.json", fuzz::kSmallModel);
  folder.write(format.own_file, input);
  const ModelConfig config = load_model_config(folder.path());
  fuzz::require(config.stored.grouped == nullptr || config.stored.grouped == &format,
                "the folder has the format whose file it has");
}

/// One file under each name that identifies a kind of path.
FUZZ_READER(model_place) {
  constexpr const char* kNames[] = {
      "config.json",       "model.safetensors",   "model.safetensors.index.json",
      "pytorch_model.bin", "adapter_config.json", "model.gguf",
      "params.json",       "tokenizer.json",      "refs/main",
      "model.tar.gz"};
  const char* name = kNames[choose(input, std::size(kNames))];
  const Folder folder;
  const std::string file = folder.write(name, input);
  const auto inspect = [](const std::string& path) {
    try {
      require_model_place(path);
      require_real_files(path);
      require_plain_weights(path);
    } catch (const UserError&) {
    }
    pickled_weights(path);
  };
  inspect(folder.path());
  inspect(file);
}

FUZZ_READER(adapter_positions) {
  const Folder folder;
  folder.write("longspan_adapter.json", input);
  const ModelConfig base = parse_model_config(fuzz::kSmallModel, "config.json");
  const ModelConfig config = with_positions_of({folder.path()}, base);
  same_positions(config, base);
}

/// The files that saving edits: their existing contents come from the model.
FUZZ_READER(chat_files) {
  constexpr const char* kNames[] = {"tokenizer_config.json", "special_tokens_map.json",
                                    "generation_config.json", "config.json"};
  const char* name = kNames[choose(input, 4)];
  const Folder folder;
  folder.write("tokenizer_config.json", "{}");
  folder.write("config.json", fuzz::kSmallModel);
  folder.write(name, input);
  write_chat(folder.path(), {"{{ messages }}",
                             SavedChat::Token{"<|im_end|>", 2},
                             SavedChat::Token{"<|endoftext|>", 0},
                             {0}});
}

FUZZ_READER(checksums) {
  const Folder folder;
  folder.write("a.txt", "a");
  folder.write(kChecksumFile, input);
  broken_file(folder.path(), /*part=*/0, /*num_parts=*/2);
  const ChecksumTable table = table_from(std::string(input));
  fuzz::require(table_from(table_text(table)) == table, "a table is read as it was written");
}

#ifdef LONGSPAN_LISTS_FILES
FUZZ_READER(file_lists) {
  const Folder folder;
  folder.write(kFileList, input);
  remove_listed(folder.path(), read_file_list(folder.path()), {});
}

FUZZ_READER(lock_owners) {
  const std::optional<LockOwner> owner = lock_owner_from(std::string(input));
  if (!owner) return;
  fuzz::require(lock_owner_from(text_of(*owner)).has_value(), "an owner is read as it was written");
}
#endif

/// trainer_state.json and trainer_log.jsonl.
FUZZ_READER(trainer_state) {
  const std::vector<std::string> parts = fuzz::pieces(input, 2);
  const Folder folder;
  folder.write("checkpoint/trainer_state.json", parts[0]);
  folder.write("checkpoint/trainer_log.jsonl", parts[1]);
  TrainingLog log(folder.path(), RunConstants());
  log.restore(folder.path() + "/checkpoint");
  log.curve("loss");
  log.curve("eval_loss");
  for (const LogEntry& entry : log.history()) console_line(entry);
  log.checkpoint_files(Progress());
}

/// Logs of two runs, and their plot.
FUZZ_READER(trainer_logs) {
  const bool draws = choose(input, 2) == 1;
  const std::vector<std::string> parts = fuzz::pieces(input, 2);
  const Folder folder;
  folder.write("a/trainer_log.jsonl", parts[0]);
  folder.write("b/trainer_log.jsonl", parts[1].empty() ? parts[0] : parts[1]);
  Arguments words{"--runs", folder.path() + "/a", folder.path() + "/b"};
  if (draws) words.push_back("--output=" + folder.path() + "/curves.png");
  compare_command().run(words);
}

/// Heartbeats of three ranks, as the store holds them.
FUZZ_READER(beats) {
  std::vector<std::optional<Beat>> earlier, later;
  for (const std::string& part : fuzz::pieces(input, 3)) {
    later.push_back(beat_from(part));
    earlier.push_back(later.back());
    if (!later.back()) continue;
    const std::optional<Beat> again = beat_from(text_of(*later.back()));
    fuzz::require(again.has_value(), "a beat is read as it was written");
    blame(1, earlier.back(), later.back(), own_machine());
  }
  diagnosis_of(earlier, later, 0, own_machine());
}

}  // namespace
}  // namespace longspan
