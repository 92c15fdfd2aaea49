// Keys: data sets and rows.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "longspan/config/config.h"
#include "longspan/config/key_tables.h"
#include "longspan/registers/stage.h"

namespace longspan::key_tables {
namespace {

constexpr double kMostRowsInMemory = 1 << 30;
constexpr double kMostPixels = 1 << 30, kMostFramesASecond = 1000, kMostFramesOfVideo = 1 << 16;

/// Unsupported templates of LLaMA-Factory 0.9.5.
std::vector<std::string_view> other_templates() {
  std::string_view left =
      "bailing bailing_v2 breeze chatglm3 chatml_de cohere cpm4 dbrx deepseek hy3 "
      "deepseekcoder dots_ocr ernie ernie_nothink ernie_vl exaone falcon falcon_h1 fewshot "
      "gemma3n gemma4 gemma4n glm4v glm4_5v glm_ocr glm4_7 granite3 granite3_vision "
      "granite4 index hunyuan hunyuan_small intern2 intern_vl intern_s1 keye_vl kimi_vl "
      "lfm2 lfm2_vl llama2_zh llama4 mllama moonlight llava llava_next llava_next_llama3 "
      "llava_next_mistral llava_next_qwen llava_next_yi llava_next_video "
      "llava_next_video_mistral llava_next_video_yi mimo mimo_v2 mimo_vl minicpm_v "
      "minicpm_v_4_6 minicpm_o minimax1 minimax2 ministral ministral3 olmo openchat "
      "openchat-3.6 opencoder paligemma paligemma_chat phi_small pixtral qwen2_audio "
      "qwen2_omni qwen3_omni qwen3_omni_nothink qwen3_6 "
      "sailor seed_coder seed_oss smollm smollm2 solar starchat telechat2 "
      "video_llava xuanyuan yi yi_vl youtu youtu_vl yuan zephyr aeva";
  std::vector<std::string_view> names;
  while (!left.empty()) {
    const size_t end = std::min(left.find(' '), left.size());
    names.push_back(left.substr(0, end));
    left.remove_prefix(std::min(end + 1, left.size()));
  }
  return names;
}

}  // namespace

KeySection data_keys() {
  using S = DataSettings;
  using enum OnResume;
  Key dataset = noted(
      plain("dataset", &S::dataset, kNamed,
            "Names in dataset_info.json, or paths of files, folders or patterns (data/*.parquet), "
            "with commas between."),
      "Names on a hub work there; here nothing is fetched. Paths work here alone.");
  Key eval_dataset = plain("eval_dataset", &S::eval_dataset, kNamed,
                           "Data sets for evaluation, named like those of dataset.");
  Key probabilities = plain("interleave_probs", &S::interleave_probs, kNamed,
                            "How often a row is drawn from each data set when mix_strategy "
                            "interleaves: numbers with commas between, whose sum is 1. Left out: "
                            "in turn.");
  Key add_tokens =
      plain("add_tokens", &S::add_tokens, kRefused,
            "Tokens that are added to the tokenizer, with commas between (<think>,<answer>).");
  Key add_special_tokens =
      plain("add_special_tokens", &S::add_special_tokens, kRefused,
            "Special tokens that are added to the tokenizer, with commas between.");
  dataset.list = eval_dataset.list = probabilities.list = true;
  add_tokens.list = add_special_tokens.list = true;
  Key val_size =
      number("val_size", &S::val_size, kNamed, 0,
             "Rows of `dataset` that become the validation split: a share below 1, or a count.",
             kMostSteps);
  Key chat_template =
      choice("template", &S::chat_template, kNamed,
             {"qwen",
              "qwen3",
              "qwen3_nothink",
              "llama3",
              "mistral",
              "chatml",
              "default",
              "empty",
              "qwen3_5",
              "qwen3_5_nothink",
              "glm4",
              "glmz1",
              "glm4_moe",
              "gemma",
              "gemma2",
              "gemma3",
              "deepseek3",
              "deepseekr1",
              "gpt_oss",
              "phi",
              "phi4",
              "phi4_mini",
              "llama2",
              "mistral_small",
              "qwen2_vl",
              "qwen3_vl",
              "qwen3_vl_nothink",
              "alpaca",
              "vicuna"},
             "How a conversation becomes text. Left out: the model's own chat_template.",
             other_templates());
  Key fps = number("video_fps", &S::video_fps, kNamed, 0,
                   "Number of frames to sample per second of a video file. For a list of frames: "
                   "the frame rate of the list; all frames are used.",
                   kMostFramesASecond);
  fps.above_least = true;
  chat_template.unsupported_remedy =
      "leave template out, and the model's own chat_template is used";
  static const std::string packing_help =
      fmt::format("Fill each row with documents up to cutoff_len; left out: true for stage {}.",
                  enumerated(names_of_stages_that([](const Stage& stage) { return stage.packs; })));
  return {
      "Data",
      {dataset,
       eval_dataset,
       plain("dataset_dir", &S::dataset_dir, kFree, "The folder that holds dataset_info.json."),
       chat_template,
       add_tokens,
       add_special_tokens,
       number("cutoff_len", &S::cutoff_len, kNamed, 1,
              "The most tokens of a row; longer examples are truncated turn by turn.", kMostTokens),
       number("max_samples", &S::max_samples, kNamed, 1, "The most rows to take from each dataset.",
              kMostSteps),
       choice("mix_strategy", &S::mix_strategy, kNamed,
              {"concat", "interleave_under", "interleave_over", "interleave_once"},
              "How several data sets become one: one after the other, or interleaved until the "
              "first has no more rows (under), until the last has none (over: others begin again; "
              "once: each row once)."),
       probabilities,
       noted(number("preprocessing_num_workers", &S::preprocessing_num_workers, kFree, 1,
                    "Threads that tokenize; left out: one for each core.", kMostProcesses),
             "They are processes there, and one by default."),
       val_size,
       plain("mask_history", &S::mask_history, kNamed, "Train on the last answer only."),
       plain("train_on_prompt", &S::train_on_prompt, kNamed, "Train on the prompts too."),
       plain("default_system", &S::default_system, kNamed,
             "System message of rows that have none; replaces the template's own."),
       noted(plain("enable_thinking", &S::enable_thinking, kNamed,
                   "The variable enable_thinking of the model's chat_template: false asks for an "
                   "answer without thoughts. Left out: the template's own default; named templates "
                   "have true."),
             "The default there is true."),
       plain("preserve_thinking", &S::preserve_thinking, kNamed,
             "Named templates keep the thoughts of earlier answers where only the last answer is "
             "trained. true is also passed to the model's chat_template."),
       noted(choice("on_bad_row", &S::on_bad_row, kNamed, {"stop", "skip"},
                    "When rows of a data set cannot be used: stop, or leave them out."),
             kOwn),
       noted(plain("packing", &S::packing, kNamed, packing_help),
             "Rows of sft are one token shorter there. pt drops the incomplete last row of every "
             "1000 texts there; here only at the end."),
       plain("neat_packing", &S::neat_packing, kNamed,
             "Packing in which documents do not attend to each other."),
       noted(plain("cache_dir", &S::cache_dir, kFree,
                   "The folder of the file with the tokens of the data sets (each machine has one "
                   "file). Left out: the system's folder for temporary files, or for files of 16 "
                   "MiB and more longspan/rows in the user's cache, which later runs read."),
             "Models and data sets are cached there."),
       noted(plain("tokenized_path", &S::tokenized_path, kFree,
                   "A folder with encoded rows. Without rows in the folder, the run encodes its "
                   "data sets and saves the rows there; otherwise the run reads the rows."),
             "It takes the rows of the folder for any data set, tokenizer and key. Here they must "
             "be the ones that the rows were made with."),
       noted(plain("overwrite_cache", &S::overwrite_cache, kFree,
                   "Encode the data sets again, and replace kept rows."),
             "It does not replace the rows of tokenized_path."),
       noted(plain("streaming", &S::streaming, kRefused,
                   "Read and encode rows during training, in files of any size. max_steps ends the "
                   "run."),
             "Several processes fill the last micro-batch of an epoch with rows of its first one "
             "there, "
             "and with rows of the next epoch here. Rows of val_size are left out in each epoch "
             "here, "
             "in the first one there."),
       number("buffer_size", &S::buffer_size, kRefused, 1,
              "With streaming: the number of rows in memory among which the next ones are drawn.",
              kMostRowsInMemory),
       plain("media_dir", &S::media_dir, kFree,
             "The folder of the pictures that rows name; left out: dataset_dir."),
       number("image_max_pixels", &S::image_max_pixels, kNamed, 1,
              "The most pixels of a picture; a larger one is made smaller.", kMostPixels),
       number("image_min_pixels", &S::image_min_pixels, kNamed, 1,
              "The fewest pixels of a picture; a smaller one is made larger.", kMostPixels),
       number("video_max_pixels", &S::video_max_pixels, kNamed, 1,
              "The most pixels of a frame of a video.", kMostPixels),
       number("video_min_pixels", &S::video_min_pixels, kNamed, 1,
              "The fewest pixels of a frame of a video.", kMostPixels),
       fps,
       number("video_maxlen", &S::video_maxlen, kNamed, 1,
              "The most frames that are taken of a video file. A list of frames is taken whole.",
              kMostFramesOfVideo)}};
}

}  // namespace longspan::key_tables
