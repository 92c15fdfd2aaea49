#include "longspan/train/early_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/registers/stage.h"
#include "longspan/saving/output_room.h"
#include "longspan/settings/data_settings.h"
#include "longspan/settings/method_settings.h"
#include "longspan/text/bytes.h"
#include "longspan/text/counted.h"
#include "longspan/train/row_cache.h"
#include "longspan/train/rows_key.h"

namespace longspan {
namespace {

class EarlySource final : public ExampleSource {
 public:
  EarlySource(std::unique_ptr<ExampleSource> epochs, Loader all, EarlyRows& rows)
      : epochs_(std::move(epochs)), all_(std::move(all)), rows_(rows) {}

  std::optional<int64_t> num_batches() const override { return epochs_->num_batches(); }
  DrawnExamples next(int64_t epoch, int64_t batch) override { return epochs_->next(epoch, batch); }
  std::vector<DrawnRow> rows(const StepPlace& step) override {
    std::vector<int64_t> wanted{0};  // the pattern of idle rows
    for (int64_t batch = step.begin_batch; batch < step.end_batch; ++batch) {
      const std::vector<int64_t> of_batch = all_.rows(step.epoch, batch);
      wanted.insert(wanted.end(), of_batch.begin(), of_batch.end());
    }
    rows_.wait_for(wanted);
    return epochs_->rows(step);
  }
  bool gives_rows_ahead() const override { return false; }  // rows() is collective
  std::string state() const override { return epochs_->state(); }
  std::string fingerprint() override { return rows_.fingerprint(); }
  void resume(const std::string& state) override { epochs_->resume(state); }

 private:
  std::unique_ptr<ExampleSource> epochs_;
  Loader all_;  // of all groups
  EarlyRows& rows_;
};

/// Whether the run goes on from a checkpoint that has the fingerprint of texts.
bool resumes_texts(const EarlyFacts& facts) {
  return facts.resumed != nullptr && facts.resumed->identity.rows.starts_with(kTextsOfRows);
}

std::unique_ptr<EarlyData> read(const EarlyFacts& facts) {
  const ModelConfig& model = facts.plan.model;
  std::string makers;
  for (const auto& [name, value] : rows_key(facts.rows, model, facts.row_makers).values) {
    const bool is_key = std::ranges::find(facts.row_makers, name, [](const auto& one) {
                          return one.first;
                        }) != facts.row_makers.end();
    if (is_key || name.starts_with("eos_token_id")) makers += fmt::format("{}={}\n", name, value);
  }
  int64_t num_trained = 0;
  if (facts.resumed != nullptr) {
    num_trained = facts.resumed->totals.progress.step * facts.resumed->identity.rows_per_step;
  }
  return EarlyData::read({facts.rows, model, facts.template_time, makers, num_trained});
}

/// Returns why an early start does not apply: "" where it applies; nullopt: it is not worth it.
std::optional<std::string> why_not_early(const EarlyFacts& facts) {
  const DataSettings& data = facts.rows.data;
  if (data.dataset.empty() || data.streaming) return std::nullopt;
  const int64_t num_bytes = rows_key(facts.rows, facts.plan.model, {}).num_data_bytes;
  if (data.tokenized_path.empty() && num_bytes < kFewestCachedBytes && !resumes_texts(facts)) {
    return std::nullopt;
  }
  std::string why = why_encoded_first(facts);
  return why.empty() ? why_no_room(temporary_rows_folder(data.cache_dir), num_bytes) : why;
}

}  // namespace

std::string why_encoded_first(const EarlyFacts& facts) {
  const RowSettings& config = facts.rows;
  const Stage& stage = stage_of(config.method);
  if (!config.method.do_train) return "do_train is false";
  if (facts.gives_rows) return "the program that started the run orders the rows";
  if (facts.plan.deals_rows) {
    return "sequence_parallel_size: auto and balance_batches need the lengths of all rows";
  }
  if (facts.resumed != nullptr && !resumes_texts(facts)) {
    return "a checkpoint belongs to rows with its fingerprint";
  }
  if (facts.plan.model.spec.vision) return "the model takes pictures, which all rows have or none";
  if (facts.preferences.precompute_ref_log_probs && stage.has_reference(facts.preferences)) {
    return "precompute_ref_log_probs computes a table for all rows";
  }
  if (config.method.generation.predict_with_generate || config.method.generation.do_predict) {
    return "predictions need all rows of evaluation";
  }
  return why_rows_wait(config.data, stage);
}

std::string why_no_room(const std::string& folder, int64_t num_data_bytes) {
  const int64_t needed = (1 + kMostGrowth) * num_data_bytes;  // texts and rows
  const Room room = room_in(folder);
  if (room.may_take(needed)) return "";
  return fmt::format(
      "with steps meanwhile, texts and rows may take {} in {} (cache_dir), where {} are free",
      name_bytes(needed), folder, name_bytes(room.free.value_or(0)));
}

EarlyStart early_start(const EarlyFacts& facts, const Events& events) {
  return {.applies = [&facts] { return why_not_early(facts) == ""; },
          .read = [&facts, &events]() -> std::unique_ptr<EarlyData> {
            const std::optional<std::string> why = why_not_early(facts);
            if (why && !why->empty()) {
              events.say(fmt::format("All rows are encoded before the first step: {}.", *why));
            }
            std::unique_ptr<EarlyData> data = why == "" ? read(facts) : nullptr;
            if (data == nullptr) return nullptr;
            const int64_t num_train = data->note().num_train;
            events.say(fmt::format(
                "The steps begin while the rows are encoded: {} of training and {} of evaluation. "
                "Remarks on the rows follow when all are encoded.",
                counted(num_train, "row"), data->num_rows() - num_train));
            return data;
          }};
}

std::string texts_to_compare(const EarlyFacts& facts, const RunData& data, const Events& events) {
  if (!resumes_texts(facts) || data.fingerprint.starts_with(kTextsOfRows)) {
    return resumes_texts(facts) ? data.fingerprint : "";
  }
  const RowSettings& config = facts.rows;
  // The comparison of keys then finds the difference.
  if (config.data.dataset.empty() || config.data.streaming || facts.gives_rows) return "";
  const std::string why = why_rows_wait(config.data, stage_of(config.method));
  if (!why.empty()) {
    throw UserError(fmt::format(
        "The checkpoint was saved while its rows were encoded, and has a fingerprint of their "
        "texts. The rows of this configuration have no such fingerprint: {}. Set the keys of data "
        "back. To begin anew, set overwrite_output_dir: true or choose another output_dir.",
        why));
  }
  events.say(
      "The data sets are read once more: the checkpoint was saved while its rows were encoded, and "
      "has a fingerprint of their texts.");
  const std::unique_ptr<EarlyData> texts = read(facts);
  return texts ? texts->note().fingerprint : "";
}

std::unique_ptr<ExampleSource> epochs_of(const OptimizationSettings& config, bool shuffles,
                                         const Group& groups, const RunData& data) {
  const auto loader_of = [&](int rank, int size, int64_t batch_size) {
    return Loader(data.train->size(), batch_size, rank, size, shuffles, config.seed);
  };
  const int64_t batch_size = config.per_device_train_batch_size;
  auto epochs =
      std::make_unique<Epochs>(*data.train, loader_of(groups.rank(), groups.size(), batch_size));
  if (!data.early) return epochs;
  return std::make_unique<EarlySource>(
      std::move(epochs), loader_of(/*rank=*/0, /*size=*/1, batch_size * groups.size()),
      *data.early);
}

}  // namespace longspan
