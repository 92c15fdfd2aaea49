#include "longspan/train/encoded_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "longspan/account/held_parameters.h"
#include "longspan/base/user_error.h"
#include "longspan/checkpoint/adapter_positions.h"
#include "longspan/data/joined_messages.h"
#include "longspan/data/run_tokenizer.h"
#include "longspan/data/template_format.h"
#include "longspan/data/turns.h"
#include "longspan/models/own_head.h"
#include "longspan/models/rope_scaling.h"
#include "longspan/registers/stage.h"
#include "longspan/report/data_hints.h"
#include "longspan/settings/choices.h"
#include "longspan/settings/data_settings.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/model_settings.h"
#include "longspan/text/counted.h"

namespace longspan {

namespace {

/// True if rows depend on the time of the run.
bool writes_time(const DataSettings& config, const Tokenizer& tokenizer, bool have_tools) {
  if (config.chat_template.empty()) {
    const std::optional<std::string> own = tokenizer.chat_template();
    return own && own->find("strftime_now") != std::string::npos;
  }
  return template_format(config.chat_template).tools.has_date() && have_tools;
}

}  // namespace

bool have_tools(const std::vector<Conversation>& rows) {
  return std::ranges::any_of(rows, [](const Conversation& row) { return !row.tools.empty(); });
}

std::optional<PictureEncoding> picture_encoding(const RowSettings& config, const ModelConfig& model,
                                                const Tokenizer& tokenizer) {
  if (!model.spec.vision) return std::nullopt;
  std::optional<PictureEncoding> encoding =
      picture_encoding_of(config.model.model_name_or_path, tokenizer, config.data);
  if (!encoding) return encoding;
  const VisionSpec& tower = *model.spec.vision;
  const PictureProcessor& pixels = encoding->processor;
  if (pixels.patch_size != tower.patch_size || pixels.merge_size != tower.merge_size ||
      pixels.temporal_patch_size != tower.temporal_patch_size) {
    throw UserError(fmt::format(
        "{}: the processor's patch_size, merge_size and temporal_patch_size are {}, {} and {}; "
        "the vision tower in config.json has {}, {} and {}. Take both files from the same model.",
        config.model.model_name_or_path, pixels.patch_size, pixels.merge_size,
        pixels.temporal_patch_size, tower.patch_size, tower.merge_size, tower.temporal_patch_size));
  }
  const bool is_square = pixels.kind == PictureProcessor::Kind::kSquare;
  if (is_square && pixels.side != tower.position_side * tower.patch_size) {
    throw UserError(fmt::format(
        "{}: the processor makes pictures of {} pixels a side; the vision tower in config.json has "
        "positions for {}. Take both files from the same model.",
        config.model.model_name_or_path, pixels.side, tower.position_side * tower.patch_size));
  }
  return encoding;
}

namespace {

/// Whether freeze_extra_modules names the embedding.
bool trains_embedding(const MethodSettings& config, const ModelSpec& model) {
  const std::set<std::string> trained = trained_by_freeze(config, model);
  return std::ranges::any_of(parameters_of(model), [&](const ParameterSpec& parameter) {
    return parameter.role == ParameterRole::kEmbedding && trained.contains(parameter.name);
  });
}

}  // namespace

void say_model(const RowSettings& config, const ModelConfig& model, Events& events) {
  ModelConfig own = load_model_config(config.model.model_name_or_path);
  if (const std::string head = describe_own_head(config.model.model_name_or_path, model);
      !head.empty()) {
    events.say("warning: " + head);
    own = with_own_head(own);
  }
  if (const int64_t more = model.spec.vocab_size - own.spec.vocab_size; more > 0) {
    events.say(fmt::format("The vocabulary grows by {} to {} (resize_vocab).", counted(more, "row"),
                           model.spec.vocab_size));
    if (config.method.finetuning_type == "freeze" && !trains_embedding(config.method, model.spec)) {
      events.say(
          "warning: the embedding is frozen, so the new rows keep their first values. Name "
          "embed_tokens (and lm_head) in freeze_extra_modules to train them.");
    }
  } else if (!added_tokens(config.data).empty() && !config.method.resize_vocab &&
             trains_adapter(config.method) && config.method.additional_target.empty()) {
    events.say(
        "warning: the adapter does not train the embedding, so the added tokens keep the rows of "
        "the model. Set resize_vocab: true, as LLaMA-Factory does, to train embedding and head.");
  }
  const std::string stretch =
      describe_stretch(own, model, config.model.rope_scaling, config.data.cutoff_len);
  if (!stretch.empty()) events.say(stretch);
  if (trains_adapter(config.method) && !same_positions(own, model)) {
    events.say(
        "The adapter's folder keeps the positions in longspan_adapter.json, for `longspan chat`, "
        "`generate` and `export`. PEFT does not read it: give PEFT's users the exported model.");
  }
}

DataSettings eval_rows_of(const RowSettings& config) {
  DataSettings data = config.data;
  data.asks_rows = config.method.generation.predict_with_generate;
  return data;
}

EncodedData encode_data(const RowSettings& config, const ModelConfig& model,
                        const LocalTime& template_time) {
  EncodedData data{.tokenizer = run_tokenizer(config.model.model_name_or_path, config.data),
                   .pictures = {},
                   .rows = {},
                   .train = {},
                   .eval = {}};
  const Stage& stage = stage_of(config.method);
  data.rows = read_run_rows(config.data, stage, config.seed);
  data.pictures = picture_encoding(config, model, data.tokenizer);
  if (data.pictures) {
    data.pictures->in_every_sample =
        have_pictures(data.rows.train) || have_pictures(data.rows.eval);
  }
  const auto encoded_from = [&](const DataSettings& settings,
                                const std::vector<Conversation>& some) {
    return encode_examples(
        {settings, stage, data.tokenizer, template_time, model.spec.vocab_size,
         data.pictures ? &*data.pictures : nullptr, model.max_position_embeddings},
        some);
  };
  if (!config.data.dataset.empty()) data.train = encoded_from(config.data, data.rows.train);
  if (!data.rows.eval.empty()) data.eval = encoded_from(eval_rows_of(config), data.rows.eval);
  return data;
}

std::optional<SavedChat> say_data(const RowSettings& config, const ModelConfig& model,
                                  const LocalTime& template_time, const EncodedData& data,
                                  Events& events) {
  RowsBeyondPositions long_train(model), long_eval(model);
  for (const Example& example : data.train.examples) long_train.add(example);
  for (const Example& example : data.eval.examples) long_eval.add(example);
  return say_data(config, model, template_time,
                  DataFacts{data.tokenizer, data.rows.notes,
                            have_tools(data.rows.train) || have_tools(data.rows.eval),
                            data.rows.train, data.train, data.eval, long_train, long_eval},
                  events);
}

std::optional<SavedChat> say_data(const RowSettings& config, const ModelConfig& model,
                                  const LocalTime& template_time, const DataFacts& data,
                                  Events& events) {
  const Stage& stage = stage_of(config.method);
  const Tokenizer& tokenizer = data.tokenizer;
  if (writes_time(config.data, tokenizer, data.have_tools)) {
    events.say(
        fmt::format("The {} prints the date. In every row of this run, also after a resume, the "
                    "time is {}.",
                    config.data.chat_template.empty()
                        ? "model's chat template (strftime_now)"
                        : fmt::format("tools' text of template: {}", config.data.chat_template),
                    template_time.text));
  }
  std::optional<SavedChat> chat = saved_chat(config.data, stage, tokenizer, template_time);
  const auto warn = [&events](const std::string& text) {
    if (!text.empty()) events.say("warning: " + text);
  };
  for (const std::string& note : data.notes) warn(note);
  warn(tokenizer.left_out());
  warn(hint_at_template(config.data, model, tokenizer));
  if (chat && !config.data.dataset.empty())
    warn(hint_at_joined_messages(config.data, stage, *chat, tokenizer, data.rows, template_time));
  for (const EncodedExamples* encoded : {&data.train, &data.eval}) {
    const bool trains = encoded == &data.train;
    for (const std::string& note : encoded->chats) {
      events.say(trains ? note : "Evaluation: " + note);
    }
    warn(encoded->left_out);
    const std::string cut = encoded->cut.text(config.data.cutoff_len);
    if (!cut.empty()) events.say(trains ? cut : "Evaluation: " + cut);
    warn((trains ? data.long_train : data.long_eval).hint());
  }
  return chat;
}

}  // namespace longspan
