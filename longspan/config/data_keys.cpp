// Keys: data sets and rows.
#include <fmt/format.h>

#include "longspan/config/config.h"
#include "longspan/config/key_tables.h"
#include "longspan/stages/stage.h"

namespace longspan::key_tables {

KeySection data_keys() {
  using C = Config;
  using enum OnResume;
  Key dataset = noted(
      plain("dataset", &C::dataset, kNamed, "Names in dataset_info.json, with commas between."),
      "Names on a hub work there; here nothing is fetched.");
  Key eval_dataset = plain("eval_dataset", &C::eval_dataset, kNamed, "The same, for evaluation.");
  dataset.list = eval_dataset.list = true;
  Key val_size =
      number("val_size", &C::val_size, kNamed, 0,
             "Rows of `dataset` that become the validation split: a share below 1, or a count.",
             kMostSteps);
  static const std::string packing_help =
      fmt::format("Fill each row with documents up to cutoff_len; left out: for stage {}.",
                  enumerated(names_of_stages_that([](const Stage& stage) { return stage.packs; })));
  return {
      "Data",
      {dataset, eval_dataset,
       plain("dataset_dir", &C::dataset_dir, kFree, "The folder that holds dataset_info.json."),
       choice("template", &C::chat_template, kNamed,
              {"qwen", "qwen3", "qwen3_nothink", "llama3", "mistral", "chatml", "default", "empty"},
              "How a conversation becomes text. Left out: the model's own chat_template.",
              {"alpaca", "deepseek3", "gemma", "gemma3", "llama2", "llama4", "phi4", "qwen3_5",
               "qwen3_vl", "qwen2_vl", "vicuna", "zephyr", "deepseekr1", "gpt_oss", "glm4", "yi",
               "fewshot"}),
       number("cutoff_len", &C::cutoff_len, kNamed, 1,
              "Tokens of a row; longer ones are cut turn by turn.", kMostTokens),
       number("max_samples", &C::max_samples, kNamed, 1, "At most so many rows of each dataset.",
              kMostSteps),
       noted(number("preprocessing_num_workers", &C::preprocessing_num_workers, kFree, 1,
                    "Threads that tokenize; left out: one for each core.", kMostProcesses),
             "They are processes there, and one by default."),
       val_size, plain("mask_history", &C::mask_history, kNamed, "Train on the last answer only."),
       plain("train_on_prompt", &C::train_on_prompt, kNamed, "Train on the prompts too."),
       plain("default_system", &C::default_system, kNamed,
             "System message of rows that have none; replaces the template's own."),
       plain("enable_thinking", &C::enable_thinking, kNamed,
             "Given to the model's chat_template when false."),
       noted(choice("on_bad_row", &C::on_bad_row, kNamed, {"stop", "skip"},
                    "When rows of a data set cannot be used: stop, or leave them out."),
             kOwn),
       noted(plain("packing", &C::packing, kNamed, packing_help),
             "Rows of sft are one token shorter there, and pt drops what fills no row after every "
             "1000 texts; here once, at the end."),
       plain("neat_packing", &C::neat_packing, kNamed,
             "packing whose documents do not see each other.")}};
}

}  // namespace longspan::key_tables
