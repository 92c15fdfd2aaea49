// Checks whether a run may resume from a checkpoint, and lists the changes since.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <utility>

#include "longspan/base/fnv1a.h"
#include "longspan/base/user_error.h"
#include "longspan/saving/training_state.h"

namespace longspan {
namespace {

constexpr const char* kBeginAnew =
    "To begin anew, set overwrite_output_dir: true or choose another output_dir.";

bool have_same_rows(const RunIdentity& then, const RunIdentity& now) {
  return then.rows == now.rows && then.num_rows == now.num_rows &&
         !then.rows.starts_with(kStreamedRows) && !then.rows.starts_with(kTextsOfRows);
}

std::string source_of(const RunIdentity& run) {
  return run.rows.empty() ? "the program that started the run" : "a data set";
}

/// Returns "template was qwen, and is chatml", ... for settings that may change; empty if none has.
/// Of streamed rows, the keys that make them are known.
std::string other_changes(const RunIdentity& then, const RunIdentity& now, bool of_rows = false) {
  const bool streams = then.rows.starts_with(kStreamedRows);
  std::vector<std::string> texts;
  for (const ChangedSetting& one : changed_settings(then.settings, now.settings)) {
    if (of_rows && streams && !makes_streamed_rows(one.key)) continue;
    texts.push_back(fmt::format("{} was {}, and is {}", one.key, one.then, one.now));
  }
  return texts.empty() ? "" : fmt::format(" Of the keys {}.", fmt::join(texts, "; "));
}

}  // namespace

void require_same_run(const std::string& checkpoint, const RunIdentity& then,
                      const RunIdentity& now, int64_t rows_per_micro_batch) {
  const auto require = [&](const std::string& what, const auto& was, const auto& is,
                           const std::string& remedy) {
    if (was == is) return;
    throw UserError(
        fmt::format("{} cannot go on with this configuration: {} was {}, and is {} now. {} {}",
                    checkpoint, what, was, is, remedy, kBeginAnew));
  };
  require("stage", then.stage, now.stage, "Set it back.");
  require("finetuning_type", then.finetuning_type, now.finetuning_type, "Set it back.");
  require("the source of the training rows", source_of(then), source_of(now),
          then.rows.empty() ? "Give the run the same source of rows, without dataset."
                            : "Set dataset back.");
  for (const ChangedSetting& one : changed_settings(then.settings, now.settings)) {
    if (one.on_resume == OnResume::kRefused) require(one.key, one.then, one.now, "Set it back.");
  }
  const bool same_rows = have_same_rows(then, now);
  for (const ChangedFile& file : changed_files(then.contents, now.contents)) {
    if (!file.decides || (file.makes_rows && same_rows)) continue;
    throw UserError(
        fmt::format("{} cannot go on: {} ({}) is not what it was when the run began: it {}. {} Put "
                    "back what was there.{} {}",
                    checkpoint, file.path, name_of(file.role), file.how, file.consequence,
                    file.makes_rows ? other_changes(then, now, /*of_rows=*/true) : "", kBeginAnew));
  }
  require(
      "the fingerprint of the trained parameters", then.trained, now.trained,
      "Set model_name_or_path, and the keys of LoRA or freezing, back." + other_changes(then, now));
  if (!then.rope_scaling.empty()) {
    require("rope_scaling", then.rope_scaling, now.rope_scaling,
            "Set rope_scaling and cutoff_len, which decides the factor, back.");
  }
  if (!then.stored_numbers.empty() && !now.stored_numbers.empty()) {
    require("the format of the weights in model_name_or_path", then.stored_numbers,
            now.stored_numbers, "Put back what its quantization_config was.");
  }
  require("the number of training rows", then.num_rows, now.num_rows,
          "Set dataset, val_size, max_samples and cutoff_len back." + other_changes(then, now));
  const char* no_time =
      then.template_time.empty()
          ? " An earlier version wrote it, which saved no time: where the model's "
            "chat template writes the date (strftime_now), its rows have that of "
            "the day when the run began."
          : "";
  require("the fingerprint of the training rows", then.rows, now.rows,
          std::string("Set dataset, template, cutoff_len and what else makes the rows back.") +
              no_time + other_changes(then, now, /*of_rows=*/true));
  require("seed", then.seed, now.seed, "Set it back.");
  require("disable_shuffling", !then.shuffled, !now.shuffled, "Set it back.");
  require(
      "the number of rows in a step, per_device_train_batch_size x data-parallel groups x "
      "gradient_accumulation_steps,",
      then.rows_per_step, now.rows_per_step,
      then.rows_per_step % rows_per_micro_batch == 0
          ? fmt::format("Set gradient_accumulation_steps: {}.",
                        then.rows_per_step / rows_per_micro_batch)
          : fmt::format("Choose the three so that their product is {}.", then.rows_per_step));
}

std::string digest_of(const RunIdentity& identity) {
  if (identity.contents.empty()) return "";
  std::string text =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n", identity.stage, identity.finetuning_type,
                  identity.trained, identity.rows, identity.num_rows, identity.rows_per_step,
                  identity.seed, identity.shuffled, identity.rope_scaling);
  for (const auto& [key, value] : identity.settings) text += fmt::format("{}={}\n", key, value);
  for (const RunFile& file : identity.contents) {
    if (!file.digest) return "";
    text += fmt::format("{} {} {:016x}\n", name_of(file.role), file.name, *file.digest);
  }
  return fmt::format("{:016x}", fnv1a(text));
}

std::vector<std::string> changes_since(const std::string& checkpoint, const RunIdentity& then,
                                       const RunIdentity& now, int64_t next_step) {
  std::vector<std::string> lines;
  if (then.settings.empty() || then.contents.empty()) {
    lines.push_back(fmt::format(
        "{} does not say with which keys and files it was made (an earlier version saved it): "
        "contents of model and data files and most keys were not compared.",
        checkpoint));
  }
  for (const ChangedSetting& one : changed_settings(then.settings, now.settings)) {
    lines.push_back(
        fmt::format("{} was {} and is {} from step {} on", one.key, one.then, one.now, next_step));
  }
  std::map<FileRole, int64_t> num_changed;
  const std::vector<ChangedFile> files = changed_files(then.contents, now.contents);
  for (const ChangedFile& file : files) ++num_changed[file.role];
  for (const ChangedFile& file : files) {
    const int64_t count = std::exchange(num_changed[file.role], 0);
    if (count == 0) continue;  // told with the first one
    const std::string which =
        fmt::format("{}{} ({})", file.path,
                    count == 1 ? "" : fmt::format(" and {} more", count - 1), name_of(file.role));
    if (!file.was_read) {
      lines.push_back(fmt::format(
          "{} could not be read when the run began: whether it has changed is not known.", which));
      continue;
    }
    lines.push_back(
        fmt::format("{} is not what it was when the run began: it {}. {}", which, file.how,
                    file.makes_rows && have_same_rows(then, now) ? "The rows are the same."
                                                                 : file.consequence));
  }
  return lines;
}

}  // namespace longspan
