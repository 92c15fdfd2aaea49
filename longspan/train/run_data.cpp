#include "longspan/train/run_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "longspan/base/fnv1a.h"
#include "longspan/base/user_error.h"
#include "longspan/data/dataset.h"
#include "longspan/data/describe_sample.h"
#include "longspan/data/example_encoder.h"
#include "longspan/data/joined_messages.h"
#include "longspan/data/picture_encoding.h"
#include "longspan/data/template_format.h"
#include "longspan/data/turns.h"
#include "longspan/input/json_text.h"
#include "longspan/liveness/agreement.h"
#include "longspan/models/own_head.h"
#include "longspan/models/rope_scaling.h"
#include "longspan/registers/stage.h"
#include "longspan/report/data_hints.h"
#include "longspan/settings/choices.h"
#include "longspan/settings/data_settings.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/model_settings.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

namespace {

/// True if rows depend on the time of the run.
bool writes_time(const DataSettings& config, const Tokenizer& tokenizer, const RunRows& rows) {
  if (config.chat_template.empty()) {
    const std::optional<std::string> own = tokenizer.chat_template();
    return own && own->find("strftime_now") != std::string::npos;
  }
  const auto has_tools = [](const Conversation& row) { return !row.tools.empty(); };
  return template_format(config.chat_template).tools.has_date() &&
         (std::ranges::any_of(rows.train, has_tools) || std::ranges::any_of(rows.eval, has_tools));
}

/// Says how the trained model differs from its folder.
void say_model(const RowSettings& config, const ModelConfig& model, Events& events) {
  ModelConfig own = load_model_config(config.model.model_name_or_path);
  if (const std::string head = describe_own_head(config.model.model_name_or_path, model);
      !head.empty()) {
    events.say("warning: " + head);
    own = with_own_head(own);
  }
  const std::string stretch =
      describe_stretch(own, model, config.model.rope_scaling, config.data.cutoff_len);
  if (!stretch.empty()) events.say(stretch);
  if (trains_adapter(config.method) && own.json != model.json) {
    events.say(
        "The adapter's folder keeps the positions in longspan_adapter.json, for `longspan chat`, "
        "`generate` and `export`. PEFT does not read it: give PEFT's users the exported model.");
  }
}

/// How the model of a run takes pictures; nullopt: it takes none.
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

/// Without data sets.
RunData no_data() {
  RunData data;
  data.train = std::make_unique<ExamplesInMemory>(std::vector<Example>());
  data.eval = std::make_unique<ExamplesInMemory>(std::vector<Example>());
  data.eval_fingerprint = fingerprint_of(*data.eval);
  return data;
}

}  // namespace

RunData read_data(const RowSettings& config, const ModelConfig& model,
                  const LocalTime& template_time, Events& events) {
  say_model(config, model, events);
  const bool has_rows = !config.data.dataset.empty();
  // Rows of the caller's are token ids: the model's folder needs no tokenizer.
  if (!has_rows && config.data.eval_dataset.empty()) return no_data();
  RunData data;
  const Tokenizer tokenizer = Tokenizer::load(config.model.model_name_or_path);
  const Stage& stage = stage_of(config.method);
  const RunRows rows = read_run_rows(config.data, stage, config.seed);
  std::optional<PictureEncoding> pictures = picture_encoding(config, model, tokenizer);
  if (pictures) {
    pictures->in_every_sample = have_pictures(rows.train) || have_pictures(rows.eval);
  }
  const auto encoded_from = [&](const std::vector<Conversation>& some) {
    return encode_examples(config.data, stage, tokenizer, some, template_time,
                           model.spec.vocab_size, pictures ? &*pictures : nullptr);
  };
  EncodedExamples train, eval;
  if (has_rows) train = encoded_from(rows.train);
  if (!rows.eval.empty()) eval = encoded_from(rows.eval);
  if (writes_time(config.data, tokenizer, rows)) {
    events.say(
        fmt::format("The {} prints the date. In every row of this run, also after a resume, the "
                    "time is {}.",
                    config.data.chat_template.empty()
                        ? "model's chat template (strftime_now)"
                        : fmt::format("tools' text of template: {}", config.data.chat_template),
                    template_time.text));
  }
  data.chat = saved_chat(config.data, stage, tokenizer, template_time);
  if (!train.examples.empty()) {
    events.say(
        fmt::format("The first training example:\n{}\n",
                    describe_example(train.examples.front(), config.method.stage, tokenizer)));
  }
  if (train.packing) events.say(train.packing->text());
  const auto warn = [&events](const std::string& text) {
    if (!text.empty()) events.say("warning: " + text);
  };
  for (const std::string& note : rows.notes) warn(note);
  warn(tokenizer.left_out());
  warn(hint_at_template(config.data, model, tokenizer));
  if (data.chat && has_rows)
    warn(hint_at_joined_messages(config.data, stage, *data.chat, tokenizer, rows.train,
                                 template_time));
  for (const EncodedExamples* encoded : {&train, &eval}) {
    for (const std::string& note : encoded->chats) {
      events.say(encoded == &train ? note : "Evaluation: " + note);
    }
    warn(encoded->left_out);
    const std::string cut = encoded->cut.text(config.data.cutoff_len);
    if (!cut.empty()) events.say(encoded == &train ? cut : "Evaluation: " + cut);
    warn(hint_at_positions(*encoded, model));
  }
  const int64_t num_train = std::ssize(train.examples);
  data.train = std::make_unique<ExamplesInMemory>(std::move(train.examples));
  data.eval = std::make_unique<ExamplesInMemory>(std::move(eval.examples), num_train);
  if (has_rows) data.fingerprint = fingerprint_of(*data.train);
  data.eval_fingerprint = fingerprint_of(*data.eval);
  return data;
}

std::string fingerprint_of(const ExampleSet& examples) {
  Fnv1a hash;
  const auto mix = [&hash](const std::vector<int32_t>& numbers) {
    hash.add(numbers.size());
    for (const int32_t number : numbers) hash.add(static_cast<uint32_t>(number));
  };
  for (int64_t i = 0; i < examples.size(); ++i) {
    const ExamplePointer drawn = examples.example(i);
    const Example& example = *drawn;
    for (const Sample& document : example.documents) {
      mix(document.input_ids);
      mix(document.labels);
      for (const unsigned char byte : attached_bytes(document)) hash.add(byte);
    }
    const std::vector<int64_t>& restarts = example.position_restarts;
    mix({restarts.begin(), restarts.end()});
    mix({static_cast<int32_t>(example.documents.size()), example.desirable});
    for (const unsigned char byte : example.solution) hash.add(byte);
  }
  return fmt::format("{:016x}", hash.value());
}

void require_same_model(const Group& world, const ModelConfig& model) {
  auto keys = parse_json(model.json, "config.json");
  for (const char* key : {"transformers_version", "_name_or_path"}) keys.erase(key);
  const std::vector<std::string> models = world.gather_text(keys.dump());
  all_or_none(world, [&] {
    for (int rank = 0; rank < world.size(); ++rank) {
      if (models[rank] == models[0]) continue;
      throw UserError(
          fmt::format("Rank {} reads another model than rank 0: config.json differs, or only one "
                      "of the two has a "
                      "{} that is not the embedding. Give every machine the same files.",
                      rank, kHeadName));
    }
  });
}

void require_same_data(const Group& world, const RunData& data) {
  const std::vector<std::string> hashes =
      world.gather_text(data.fingerprint + data.eval_fingerprint);
  all_or_none(world, [&] {
    for (int rank = 0; rank < world.size(); ++rank) {
      if (hashes[rank] == hashes[0]) continue;
      throw UserError(fmt::format(
          "Rank {} reads other training rows than rank 0. Give every machine the same dataset and "
          "tokenizer files.",
          rank));
    }
  });
}

}  // namespace longspan
