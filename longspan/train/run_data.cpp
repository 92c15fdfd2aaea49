#include "longspan/train/run_data.h"

#include <fmt/format.h>

#include "longspan/config/user_error.h"
#include "longspan/data/dataset.h"
#include "longspan/data/describe_sample.h"
#include "longspan/data/joined_messages.h"
#include "longspan/data/turns.h"
#include "longspan/liveness/agreement.h"
#include "longspan/models/rope_scaling.h"
#include "longspan/report/data_hints.h"
#include "longspan/spec/fnv1a.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

RunData read_data(const Config& config, const ModelConfig& model, Console& console) {
  RunData data;
  const ModelConfig own = load_model_config(config.model_name_or_path);
  const std::string stretch = describe_stretch(own, model, config.rope_scaling, config.cutoff_len);
  if (!stretch.empty()) console.say(stretch);
  if (config.finetuning_type == "lora" && own.json != model.json) {
    console.say(
        "The adapter's folder keeps the positions in longspan_adapter.json, for `longspan chat`, "
        "`generate` and `export`. PEFT does not read it: give PEFT's users the exported model.");
  }
  const Tokenizer tokenizer = Tokenizer::load(config.model_name_or_path);
  const RunRows rows = read_run_rows(config);
  data.train = encode_examples(config, tokenizer, rows.train, model.vocab_size);
  if (!rows.eval.empty()) {
    data.eval = encode_examples(config, tokenizer, rows.eval, model.vocab_size);
  }
  data.chat = saved_chat(config, tokenizer);
  if (!data.train.examples.empty()) {
    console.say(
        fmt::format("The first training example:\n{}\n",
                    describe_example(data.train.examples.front(), config.stage, tokenizer)));
  }
  if (data.train.packing) console.say(data.train.packing->text());
  const auto warn = [&console](const std::string& text) {
    if (!text.empty()) console.say("warning: " + text);
  };
  for (const std::string& note : rows.notes) warn(note);
  warn(hint_at_template(config, model, tokenizer));
  if (data.chat) warn(hint_at_joined_messages(config, *data.chat, tokenizer, rows.train));
  for (const EncodedExamples* encoded : {&data.train, &data.eval}) {
    warn(encoded->left_out);
    const std::string cut = encoded->cut.text(config.cutoff_len);
    if (!cut.empty()) console.say(encoded == &data.train ? cut : "Evaluation: " + cut);
    warn(hint_at_positions(*encoded, model));
  }
  return data;
}

std::string fingerprint_of(const std::vector<Example>& examples) {
  Fnv1a hash;
  const auto mix = [&hash](const std::vector<int32_t>& numbers) {
    hash.add(numbers.size());
    for (const int32_t number : numbers) hash.add(static_cast<uint32_t>(number));
  };
  for (const Example& example : examples) {
    for (const Sample& document : example.documents) {
      mix(document.input_ids);
      mix(document.labels);
    }
    const std::vector<int64_t>& restarts = example.position_restarts;
    mix({restarts.begin(), restarts.end()});
    mix({static_cast<int32_t>(example.documents.size()), example.desirable});
  }
  return fmt::format("{:016x}", hash.value());
}

void require_same_data(const Group& world, const RunData& data) {
  const std::vector<std::string> hashes =
      world.gather_text(fingerprint_of(data.train.examples) + fingerprint_of(data.eval.examples));
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
