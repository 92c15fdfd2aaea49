#include "longspan/train/run_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/data/example_encoder.h"
#include "longspan/data/example_file.h"
#include "longspan/data/picture_rows.h"
#include "longspan/data/run_tokenizer.h"
#include "longspan/data/streamed_rows.h"
#include "longspan/input/json_text.h"
#include "longspan/liveness/agreement.h"
#include "longspan/models/own_head.h"
#include "longspan/saving/training_state.h"
#include "longspan/settings/data_settings.h"
#include "longspan/settings/method_settings.h"
#include "longspan/train/encoded_data.h"
#include "longspan/train/passed_rows.h"

namespace longspan {

namespace {

/// Of each streamed data set, for remarks. Few, since each may have a million tokens.
constexpr int64_t kFirstRows = 8;

/// Reads the first rows of streamed data sets, and the rows for evaluation.
RunRows read_beside_stream(const RowSettings& config, const Stage& stage) {
  const std::vector<DatasetEntry> entries = streamed_datasets(config.data, stage);
  RunRows rows;
  rows.train = first_rows(config.data, entries, kFirstRows, rows.notes);
  if (!config.data.eval_dataset.empty()) {
    rows.eval =
        read_conversations(config.data, stage, config.seed, config.data.eval_dataset, rows.notes);
  } else {
    HeldOutRows held_out =
        held_out_rows(config.data, entries, config.seed, !config.method.disable_shuffling);
    rows.eval = std::move(held_out.rows);
    if (!held_out.note.empty()) rows.notes.push_back(std::move(held_out.note));
  }
  return rows;
}

}  // namespace

DataNote read_data(const RowSettings& config, const ModelConfig& model,
                   const LocalTime& template_time, Events& events, const ExampleTaker& take) {
  const bool has_rows = !config.data.dataset.empty();
  const bool streams = has_rows && config.data.streaming;
  const ExampleTaker take_none = [](const Example&) {};
  PassedExamples train_set(model, streams ? take_none : take), eval_set(model, take);
  DataNote data;
  data.eval_fingerprint = eval_set.fingerprint.value();
  // Rows of the caller's are token ids: the model's folder needs no tokenizer.
  if (!has_rows && config.data.eval_dataset.empty()) return data;
  const Tokenizer tokenizer = run_tokenizer(config.model.model_name_or_path, config.data);
  const Stage& stage = stage_of(config.method);
  std::optional<PictureEncoding> pictures = picture_encoding(config, model, tokenizer);
  const bool in_parts = has_rows && !streams && !pictures && encodes_in_parts(stage) &&
                        reads_in_parts(config.data, stage, config.data.dataset);
  RunRows rows;
  std::vector<std::string> notes;
  if (streams) {
    rows = read_beside_stream(config, stage);
    events.say(fmt::format(
        "The rows are streamed. Remarks on training rows, as the next ones, are on the first {} of "
        "each data set.",
        kFirstRows));
  } else if (!in_parts) {
    rows = read_run_rows(config.data, stage, config.seed);
  } else if (!config.data.eval_dataset.empty()) {
    rows.eval =
        read_conversations(config.data, stage, config.seed, config.data.eval_dataset, rows.notes);
  }
  if (pictures) {
    const bool may_come =
        streams && video_form(config.data.chat_template, *pictures) != VideoForm::kNone;
    pictures->in_every_sample = may_come || have_pictures(rows.train) || have_pictures(rows.eval);
  }
  const auto encoded_from = [&](const DataSettings& settings, const std::vector<Conversation>& some,
                                PassedExamples& set) {
    EncodedExamples encoded = encode_examples({.config = settings,
                                               .stage = stage,
                                               .tokenizer = tokenizer,
                                               .template_time = template_time,
                                               .vocab_size = model.spec.vocab_size,
                                               .pictures = pictures ? &*pictures : nullptr,
                                               .max_positions = model.max_position_embeddings,
                                               .may_be_empty = streams && &set == &train_set},
                                              some);
    for (const Example& example : encoded.examples) set.pass(example);
    encoded.examples.clear();
    return encoded;
  };
  EncodedExamples train, eval;
  SeenRows seen, seen_eval;
  if (in_parts) {
    PartEncoder encoder({config.data, stage, tokenizer, template_time, model.spec.vocab_size},
                        temporary_rows_folder(config.data.cache_dir),
                        [&](const Example& example) { train_set.pass(example); });
    read_in_parts(config.data, stage, config.data.dataset, notes,
                  [&](const std::vector<Conversation>& part) {
                    seen.add(part);
                    encoder.add(part);
                  });
    train = encoder.finish();
  } else if (has_rows) {
    seen.add(rows.train);
    train = encoded_from(config.data, rows.train, train_set);
  }
  std::ranges::move(rows.notes, std::back_inserter(notes));
  seen_eval.add(rows.eval);
  if (!rows.eval.empty()) eval = encoded_from(eval_rows_of(config), rows.eval, eval_set);
  data = say_rows(config, model, template_time,
                  {tokenizer, notes, seen.tools || seen_eval.tools, seen.first, train, eval,
                   train_set, eval_set},
                  events);
  if (streams) data.num_train = 0;
  return data;
}

void RowsFingerprint::add(const Example& example) {
  const auto mix = [this](const std::vector<int32_t>& numbers) {
    hash_.add(numbers.size());
    for (const int32_t number : numbers) hash_.add(static_cast<uint32_t>(number));
  };
  for (const Sample& document : example.documents) {
    mix(document.input_ids);
    mix(document.labels);
    for (const unsigned char byte : attached_bytes(document)) hash_.add(byte);
  }
  const std::vector<int64_t>& restarts = example.position_restarts;
  mix({restarts.begin(), restarts.end()});
  mix({static_cast<int32_t>(example.documents.size()), example.desirable});
  for (const unsigned char byte : example.solution) hash_.add(byte);
}

std::string RowsFingerprint::value() const { return fmt::format("{:016x}", hash_.value()); }

std::string fingerprint_of(const ExampleSet& examples) {
  RowsFingerprint fingerprint;
  for (int64_t i = 0; i < examples.size(); ++i) fingerprint.add(*examples.example(i));
  return fingerprint.value();
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
  const auto size_of = [](const auto& set) { return set ? set->size() : 0; };
  const std::vector<std::string> sizes = world.gather_text(fmt::format(
      "{} training rows and {} of evaluation", size_of(data.train), size_of(data.eval)));
  // A machine that has kept the rows knows their fingerprint, another one that of the texts. The
  // end of the encoding compares the two.
  const auto is_of_texts = [](const std::string& hash) { return hash.starts_with(kTextsOfRows); };
  all_or_none(world, [&] {
    for (int rank = 0; rank < world.size(); ++rank) {
      if (sizes[rank] != sizes[0]) {
        throw UserError(fmt::format(
            "Rank {} reads {}, and rank 0 {}. Give every machine the same dataset and tokenizer "
            "files.",
            rank, sizes[rank], sizes[0]));
      }
      const auto first = std::ranges::find_if(hashes, [&](const std::string& hash) {
        return is_of_texts(hash) == is_of_texts(hashes[rank]);
      });
      if (hashes[rank] == *first) continue;
      throw UserError(fmt::format(
          "Rank {} reads other training rows than rank {}. Give every machine the same dataset and "
          "tokenizer files.",
          rank, first - hashes.begin()));
    }
  });
}

}  // namespace longspan
