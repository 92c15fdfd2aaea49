#include "longspan/train/early_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <utility>
#include <variant>

#include "longspan/base/fnv1a.h"
#include "longspan/base/user_error.h"
#include "longspan/data/run_tokenizer.h"
#include "longspan/liveness/agreement.h"
#include "longspan/registers/stage.h"
#include "longspan/saving/training_state.h"
#include "longspan/settings/data_settings.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/model_settings.h"

namespace longspan {
namespace {

/// How often ranks that wait ask each other whether one was told to stop.
constexpr std::chrono::milliseconds kBetweenQuestions{500};

/// Keeps the lines of a thread, for the thread of the run.
class Lines final : public EventSink {
 public:
  explicit Lines(std::vector<std::string>& lines) : lines_(lines) {}
  void take(const Event& event) override {
    if (const auto* said = std::get_if<Said>(&event)) lines_.push_back(said->text);
  }

 private:
  std::vector<std::string>& lines_;
};

}  // namespace

EarlyData::EarlyData(const Inputs& inputs)
    : config_(inputs.config),
      model_(inputs.model),
      template_time_(inputs.template_time),
      makers_(inputs.makers),
      tokenizer_(run_tokenizer(config_.model.model_name_or_path, config_.data)) {}

std::unique_ptr<EarlyData> EarlyData::read(const Inputs& inputs) {
  std::unique_ptr<EarlyData> data(new EarlyData(inputs));
  const EarlyJob job{.config = data->config_.data,
                     .stage = stage_of(data->config_.method),
                     .tokenizer = data->tokenizer_,
                     .template_time = data->template_time_,
                     .vocab_size = data->model_.spec.vocab_size,
                     .seed = data->config_.seed,
                     .shuffles = !data->config_.method.disable_shuffling,
                     .num_trained = inputs.num_trained};
  data->encoder_ = std::make_unique<EarlyEncoder>(
      job, data->notes_, [&](const std::vector<Conversation>& rows) { data->seen_.add(rows); });
  return data->encoder_->has_too_few() ? nullptr : std::move(data);
}

DataNote EarlyData::note() const {
  const auto fingerprint_of = [&](const std::string& texts) {
    return fmt::format("{}{:016x}", kTextsOfRows, fnv1a(texts + "\n" + makers_));
  };
  DataNote note;
  note.num_train = encoder_->num_train();
  note.fingerprint = fingerprint_of(encoder_->fingerprint());
  note.eval_fingerprint = fingerprint_of(encoder_->eval_fingerprint());
  note.chat = saved_chat(config_.data, stage_of(config_.method), tokenizer_, template_time_);
  return note;
}

void EarlyData::start(std::string_view note, std::function<void(Events&, const ReadData&)> keep,
                      bool is_awaited) {
  is_awaited_ = is_awaited;
  encoder_->start(note, [this, keep = std::move(keep)] {
    Lines sink(lines_);
    Events events(/*rank=*/0, &sink);
    keep(events, [this](Events& told, const ExampleTaker& take) {
      result_ = finish(told, take);
      return result_;
    });
  });
}

DataNote EarlyData::finish(Events& events, const ExampleTaker& take) {
  PassedExamples train_set(model_, take), eval_set(model_, take);
  for (int64_t row = 0; row < encoder_->num_rows(); ++row) {
    (row < encoder_->num_train() ? train_set : eval_set).pass(encoder_->example(row));
  }
  // The reports of read_data() look at the first rows of the first part, or of all training rows.
  const Stage& stage = stage_of(config_.method);
  std::vector<Conversation> first = std::move(seen_.first);
  if (!encodes_in_parts(stage) || !reads_in_parts(config_.data, stage, config_.data.dataset)) {
    first.clear();
    for (int64_t row = 0; row < std::min<int64_t>(SeenRows::kMost, encoder_->num_train()); ++row) {
      first.push_back(encoder_->text(row));
    }
  }
  const EncodedExamples train = encoder_->train_report(), eval = encoder_->eval_report();
  return say_rows(config_, model_, template_time_,
                  {tokenizer_, notes_, seen_.tools, first, train, eval, train_set, eval_set},
                  events);
}

void EarlyRows::wait_for(const std::vector<int64_t>& rows) {
  if (is_complete_) return;
  all_or_none_patiently(world_, notices_, [&] {
    if (own_) own_->encoder().wait_for(rows);
  });
  if (!any_of_ranks(own_ && !own_->encoder().has_ended())) take_results();
}

bool EarlyRows::wait_for_evaluation(const Stops& stops) {
  if (is_complete_) return true;
  std::vector<int64_t> rows(num_rows_ - num_train_);
  std::iota(rows.begin(), rows.end(), num_train_);
  return wait_or_stop(stops,
                      [&](const Stops& pauses) { return own_->encoder().wait_for(rows, pauses); });
}

bool EarlyRows::wait_or_stop(const Stops& stops, const std::function<bool(const Stops&)>& wait) {
  using Clock = std::chrono::steady_clock;
  for (;;) {
    const auto end = Clock::now() + kBetweenQuestions;
    bool is_there = true;
    all_or_none_patiently(world_, notices_, [&] {
      if (own_) is_there = wait([&] { return stops() || Clock::now() >= end; });
    });
    if (!any_of_ranks(!is_there)) return true;
    if (any_of_ranks(stops())) return false;
  }
}

bool EarlyRows::any_of_ranks(bool mine) const {
  return std::ranges::any_of(gather_answers(world_, mine), std::identity());
}

void EarlyRows::end(const Stops& stops) {
  if (is_complete_) return;
  const auto encodes = [this] { return own_ && !own_->encoder().has_ended(); };
  std::string problem;
  // Returns false if `pauses` asked to stop.
  const auto wait_for_end = [&](const Stops& pauses) {
    try {
      return own_->encoder().wait_for_end(pauses);
    } catch (const std::exception& error) {
      problem = describe_failure(error);
      return true;
    }
  };
  if (any_of_ranks(encodes() && own_->is_awaited())) {
    events_.say(
        "The steps are done and the model is saved. The run goes on until all rows are encoded, "
        "for tokenized_path; SIGTERM or Ctrl-C ends it without these rows.");
    if (!wait_or_stop(stops, wait_for_end)) {
      return events_.say("The run was told to stop: the encoded rows are not kept.");
    }
  }
  const bool is_encoding = encodes();
  if (own_ && !is_encoding) wait_for_end({});
  for (const std::string& text : world_.gather_text(problem)) {
    if (text.empty()) continue;
    return events_.say(fmt::format(
        "warning: The model is saved. The rows are not kept, since their encoding ended with an "
        "error: {}",
        text));
  }
  if (!any_of_ranks(is_encoding)) return take_results();
  events_.say("The steps are done before all rows are encoded: no rows are kept for later runs.");
}

void EarlyRows::take_results() {
  all_or_none(world_, [&] {
    if (!own_) return;
    own_->encoder().wait_for_end();  // rethrows the exception of the thread
    fingerprint_ = own_->result().fingerprint;
    eval_fingerprint_ = own_->result().eval_fingerprint;
    for (const std::string& line : own_->lines()) events_.say(line);
  });
  agree(fingerprint_, "training");
  agree(eval_fingerprint_, "evaluation");
  is_complete_ = true;
}

void EarlyRows::agree(std::string& fingerprint, const std::string& what) const {
  const std::vector<std::string> all = world_.gather_text(fingerprint);
  const auto is_known = [](const std::string& one) { return !one.starts_with(kTextsOfRows); };
  fingerprint = *std::ranges::find_if(all, is_known);
  all_or_none(world_, [&] {
    for (int rank = 0; rank < world_.size(); ++rank) {
      if (!is_known(all[rank]) || all[rank] == fingerprint) continue;
      throw UserError(fmt::format(
          "Rank {} encodes other {} rows than the ranks before it. Give every machine the same "
          "dataset and tokenizer files.",
          rank, what));
    }
  });
}

}  // namespace longspan
