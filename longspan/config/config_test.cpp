#include "longspan/config/config.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "longspan/base/user_error.h"
#include "longspan/config/keys.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/text/nearest.h"

namespace longspan {

namespace {

using nlohmann::json;

/// The smallest accepted configuration.
json least() {
  return {{"model_name_or_path", "m"}, {"dataset", "d"}, {"output_dir", "o"}, {"do_train", true}};
}

class File {
 public:
  File(const std::string& text, const std::string& ending) {
    path = (std::filesystem::temp_directory_path() /
            ("longspan_config_test_" + std::to_string(getpid()) + ending))
               .string();
    std::ofstream(path) << text;
  }
  ~File() { std::filesystem::remove(path); }
  std::string path;
};

Config load(const json& values, const std::vector<std::string>& overrides = {}) {
  return load_config(File(values.dump(), ".json").path, overrides);
}

Config load_yaml(const std::string& text) { return load_config(File(text, ".yaml").path, {}); }

/// Returns the UserError's message; "" where none is thrown.
std::string complaint(json extra, const std::vector<std::string>& overrides = {}) {
  json values = least();
  if (!extra.is_null()) values.update(extra);
  const File file(values.dump(), ".json");
  try {
    load_config(file.path, overrides);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

#define CHECK_SAYS(text, part) CHECK_MESSAGE(has(text, part), (text))

}  // namespace

TEST_CASE("config: values of every kind arrive") {
  json values = least();
  values.update({{"learning_rate", 1e-5},
                 {"cutoff_len", 1e3},
                 {"max_samples", 7},
                 {"num_train_epochs", 2},
                 {"save_strategy", false},
                 {"eval_dataset", nullptr},
                 {"dataset", {"a", "b"}},
                 {"sequence_parallel_mode", "loongtrain"},
                 {"sequence_parallel_ulysses_degree", 2},
                 {"sequence_parallel_ring_degree", 4},
                 {"sequence_parallel_window_size", 2},
                 {"sequence_parallel_head_waves", 3},
                 {"template", "qwen"},
                 {"overwrite_cache", true},
                 {"report_to", "none"}});
  const Config config = load(values);
  CHECK(config.optimization.learning_rate == 1e-5);
  CHECK(config.data.cutoff_len == 1000);
  CHECK(config.data.max_samples == 7);
  CHECK(config.optimization.num_train_epochs == 2.0);
  CHECK(config.output.save_strategy == "no");
  CHECK(config.data.dataset == "a,b");
  CHECK(config.parallel.sequence_parallel_mode == "loongtrain");
  CHECK(config.parallel.sequence_parallel_ulysses_degree == 2);
  CHECK(config.parallel.sequence_parallel_ring_degree == 4);
  CHECK(config.parallel.sequence_parallel_window_size == 2);
  CHECK(config.parallel.sequence_parallel_head_waves == 3);
  CHECK(config.data.chat_template == "qwen");
  CHECK(config.data.eval_dataset.empty());
  CHECK(config.optimization.per_device_train_batch_size ==
        Config{}.optimization.per_device_train_batch_size);
}

TEST_CASE("config: every mode may be written, and auto") {
  json values = least();
  for (const Method* method : all_methods()) {
    values["sequence_parallel_mode"] = std::string(method->name);
    CHECK(load(values).parallel.sequence_parallel_mode == method->name);
  }
  values["sequence_parallel_mode"] = "auto";
  CHECK(load(values).parallel.sequence_parallel_mode == "auto");
}

TEST_CASE("config: overrides win and may mend what the file says") {
  json values = least();
  values.update({{"deepspeed", "z3.json"}, {"seed", 1}});
  const Config config = load(values, {"deepspeed=null", "seed=5", "--max-steps", "-1", "--bf16",
                                      "--seed", "6", "--learning_rate=0.25", "output_dir=a=b"});
  CHECK(config.optimization.seed == 6);
  CHECK(config.optimization.max_steps == -1);
  CHECK(config.optimization.bf16);
  CHECK(config.optimization.learning_rate == 0.25);
  CHECK(config.output.output_dir == "a=b");
  CHECK_SAYS(complaint({}, {"loud"}), "key=value");
  CHECK_SAYS(complaint({}, {"=3"}), "no key");
}

TEST_CASE("config: MLPs keep something where checkpointing computes it again, and not in tiles") {
  for (const int layers : {-1, 3}) {
    CHECK_SAYS(complaint({{"kept_mlp_layers", layers}, {"disable_gradient_checkpointing", true}}),
               "kept_mlp_layers is for gradient checkpointing");
    CHECK_SAYS(complaint({{"kept_mlp_layers", layers}, {"tiled_mlp", 4}}),
               "tiled_mlp computes them again, tile by tile; remove one of them");
  }
  json values = least();
  values.update({{"kept_mlp_layers", 0}, {"tiled_mlp", 4}});
  CHECK(load(values).memory.kept_mlp_layers == 0);
  values = least();
  values.update({{"kept_mlp_layers", 2}, {"offload_activations", true}});
  CHECK(load(values).memory.kept_mlp_layers == 2);
}

TEST_CASE("config: keys of one stage or way of fine-tuning are refused by the others") {
  CHECK_SAYS(complaint({{"lora_rank", 16}}), "finetuning_type: lora");
  CHECK_SAYS(complaint({{"finetuning_type", "freeze"}, {"use_rslora", true}}),
             "use_rslora, use_dora, loraplus_lr_ratio, pissa_init, pissa_iter and pissa_convert "
             "are for finetuning_type: lora; remove them");
  CHECK_SAYS(complaint({{"adapter_name_or_path", "lora"}}), "`longspan export` merges");
  CHECK_SAYS(complaint({{"freeze_trainable_layers", 3}}), "finetuning_type: freeze");
  CHECK_SAYS(complaint({{"finetuning_type", "freeze"}, {"freeze_trainable_layers", 0}}),
             "trains nothing");
  CHECK_SAYS(complaint({{"pref_loss", "ipo"}}), "stage: dpo");
  CHECK_SAYS(complaint({{"stage", "pt"}, {"use_dft_loss", true}}), "stage: sft");
  CHECK_SAYS(complaint({{"pref_beta", 0.2}}), "the stages dpo and kto");
  CHECK_SAYS(complaint({{"stage", "dpo"}, {"kto_chosen_weight", 2}}), "stage: kto");
  CHECK_SAYS(complaint({{"stage", "dpo"}, {"pref_loss", "ipo"}, {"dpo_label_smoothing", 0.1}}),
             "pref_loss: sigmoid only");
  CHECK_SAYS(complaint({{"stage", "dpo"}, {"pref_loss", "orpo"}, {"ref_model", "base"}}),
             "no reference model");
  CHECK_SAYS(complaint({{"stage", "rm"}, {"precompute_ref_log_probs", true}}), "dpo and kto");
  CHECK_SAYS(complaint({{"stage", "dpo"}, {"ref_model_adapters", "lora"}}), "wants ref_model");
  CHECK_SAYS(complaint({{"stage", "kto"}, {"pref_share_prompt", true}}), "stages dpo and rm");
  CHECK_SAYS(complaint({{"stage", "dpo"}, {"value_head_dropout", 0.1}}), "stage: rm");
  CHECK_SAYS(complaint({{"stage", "rm"}, {"value_head_dropout", 1}}), "drops everything");
  CHECK_SAYS(complaint({{"stage", "dpo"}, {"mask_history", true}}), "stages distill_sft and sft");
  CHECK_SAYS(complaint({{"stage", "dpo"}, {"neat_packing", true}}), "stages distill_sft and sft");
  CHECK_SAYS(complaint({{"stage", "rm"}, {"packing", true}}), "distill_sft, pt and sft");
  CHECK_SAYS(complaint({{"neat_packing", true}, {"packing", false}}), "keep one");
  CHECK_SAYS(complaint({{"image_max_pixels", 100}}), "image_min_pixels is above image_max_pixels");
  CHECK_SAYS(complaint({{"video_min_pixels", 100000}}), "video_min_pixels is above");
  CHECK_SAYS(complaint({{"freeze_language_model", true}}), "nothing is trained");
  CHECK(complaint({{"freeze_language_model", true}, {"freeze_vision_tower", false}}).empty());
  CHECK_SAYS(complaint({{"export_dir", "merged"}}), "`longspan export`");
  CHECK(complaint({{"stage", "dpo"},
                   {"pref_loss", "sigmoid"},
                   {"dpo_label_smoothing", 0.1},
                   {"ref_model", "base"},
                   {"ref_model_adapters", "lora"},
                   {"precompute_ref_log_probs", true},
                   {"pref_share_prompt", true},
                   {"finetuning_type", "lora"},
                   {"lora_alpha", 8}}) == "");
}

TEST_CASE("config: an unknown key names the nearest one") {
  CHECK_SAYS(complaint({{"learning_rte", 1}}), "the nearest known key is learning_rate");
  CHECK_SAYS(complaint({{"lora_rnk", 1}}), "the nearest known key is lora_rank");
  CHECK_SAYS(complaint({}, {"cutof_len=9"}), "the nearest known key is cutoff_len");
}

TEST_CASE("config: known keys that are not built are refused by name, their idle values are not") {
  CHECK_SAYS(complaint({{"deepspeed", "ds_z3.json"}}), "cannot read the deepspeed file ds_z3.json");
  CHECK_SAYS(complaint({{"use_galore", true}}), "use_galore: true is known but not supported");
  CHECK_SAYS(complaint({{"report_to", "comet_ml"}}),
             "trainer_state.json in output_dir holds every");
  CHECK_SAYS(complaint({{"report_to", {"tensorboard", "flyte"}}}), "report_to: flyte is known");
  CHECK_SAYS(complaint({{"project", "mine"}}),
             "project and trackio_space_id are for report_to: tra");
  CHECK_SAYS(complaint({{"swanlab_mode", "local"}}), "swanlab_* are for use_swanlab: true");
  CHECK_SAYS(complaint({{"report_to", {"tensorboard", "none"}}}), "keep one");
  CHECK_SAYS(complaint({{"report_to", "tensorbord"}}), "report_to: there is no \"tensorbord\"");
  for (const json& taken : {json("all"), json({"tensorboard"}), json({"tensorboard", "wandb"}),
                            json::array(), json("none")}) {
    CHECK(complaint({{"report_to", taken}}) == "");
  }
  CHECK_SAYS(complaint({{"fp16", true}}), "use bf16");
  CHECK_SAYS(complaint({{"stage", "ppo"}}), "stage: ppo is known but not supported");
  CHECK_SAYS(complaint({{"finetuning_type", "oft"}}), "finetuning_type: oft is known");
  CHECK_SAYS(complaint({{"template", "yi"}}), "template: yi is known");
  CHECK(complaint({{"deepspeed", nullptr},
                   {"packing", false},
                   {"report_to", {"none"}},
                   {"resume_from_checkpoint", nullptr},
                   {"optim", "adamw_torch"},
                   {"lora_rank", 8},
                   {"dataloader_num_workers", 4},
                   {"average_tokens_across_devices", true},
                   {"trust_remote_code", true}}) == "");
  CHECK_SAYS(complaint({{"average_tokens_across_devices", false}}), "is known but not supported");
}

TEST_CASE("config: types and ranges, all problems at once") {
  CHECK_SAYS(complaint({{"learning_rate", "fast"}}),
             "learning_rate: \"fast\" was given; wanted is a number, at least 0");
  CHECK_SAYS(complaint({{"bf16", "yes"}}), "wanted is true or false");
  CHECK_SAYS(complaint({{"cutoff_len", 2.5}}), "wanted is a whole number, at least 1");
  CHECK_SAYS(complaint({{"cutoff_len", 0}}), "at least 1");
  CHECK_SAYS(complaint({{"num_train_epochs", 0}}), "a number above 0");
  CHECK_SAYS(complaint({{"warmup_ratio", 1.5}}), "at most 1");
  CHECK_SAYS(complaint({{"output_dir", 3}}), "wanted is text");
  CHECK_SAYS(complaint({{"save_strategy", "never"}}), "one of: no, steps, epoch");
  CHECK_SAYS(complaint({{"seed", {1, 2}}}), "[1,2] was given");
  CHECK_SAYS(complaint({{"seed", 18446744073709551615ull}}), "wanted is a whole number");
  const std::string both = complaint({{"seed", "x"}, {"bf16", 2}});
  CHECK_SAYS(both, "2 problems");
  CHECK_SAYS(both, "seed: ");
  CHECK_SAYS(both, "bf16: ");
}

TEST_CASE("config: what keys demand of each other") {
  for (const char* key : {"model_name_or_path", "dataset", "output_dir"}) {
    CHECK_SAYS(complaint({{key, nullptr}}), std::string(key) + " is missing");
  }
  CHECK_SAYS(complaint({{"do_train", false}}), "do_train must be true");
  CHECK_SAYS(complaint({{"warmup_ratio", 0.1}, {"warmup_steps", 2}}), "keep one");
  CHECK_SAYS(complaint({{"max_steps", 0}}), "max_steps");
  CHECK_SAYS(complaint({{"lr_scheduler_type", "constant"}, {"warmup_steps", 2}}),
             "take constant_with_warmup");
  CHECK_SAYS(complaint({{"mask_history", true}, {"train_on_prompt", true}}), "keep one");
  CHECK_SAYS(complaint({{"eval_strategy", "steps"}}), "nothing to evaluate on");
  CHECK_SAYS(complaint({{"val_size", 0.1}}), "nothing evaluates");
  CHECK_SAYS(complaint({{"val_size", 1.5}, {"do_eval", true}}), "whole number of rows");
  CHECK_SAYS(complaint({{"val_size", 0.1}, {"eval_dataset", "e"}, {"do_eval", true}}), "keep one");
  CHECK_SAYS(complaint({{"eval_steps", 5}}), "without eval_strategy: steps");
  CHECK(complaint({{"val_size", 0.1}, {"eval_strategy", "steps"}, {"eval_steps", 5}}) == "");
}

TEST_CASE("config: a problem of several keys names where their values came from") {
  const File file(least().dump(), ".json");
  const auto begins = [&](json extra, const std::vector<std::string>& words,
                          const std::string& place) {
    const std::string said = complaint(extra, words);
    CHECK_MESSAGE(said.starts_with(place + ": "), said);
  };
  const std::string words = "command line", both = file.path + " and " + words;
  begins({{"max_steps", 0}}, {}, file.path);
  begins({}, {"max_steps=0"}, words);
  begins({{"num_train_epochs", 2}}, {"max_steps=0"}, words);  // the remedy names that key
  begins({{"max_steps", 0}}, {"seed=1"}, file.path);
  begins({{"warmup_ratio", 0.1}, {"warmup_steps", 2}}, {}, file.path);
  begins({{"warmup_ratio", 0.1}}, {"warmup_steps=2"}, both);
  begins({}, {"warmup_ratio=0.1", "--warmup-steps", "2"}, words);
  begins({{"warmup_ratio", 0.1}, {"warmup_steps", 3}}, {"warmup_steps=2"}, both);
  begins({}, {"do_train=false"}, words);
  begins({}, {"evaluation_strategy=steps"}, words);
  begins({{"dataset", nullptr}}, {}, file.path);
  begins({{"dataset", nullptr}}, {"seed=1"}, both);  // neither has it
}

TEST_CASE("config: files that cannot be read") {
  CHECK_THROWS_WITH_AS(load_config("/nowhere/x.yaml", {}),
                       "cannot read the configuration file /nowhere/x.yaml: No such file or "
                       "directory",
                       UserError);
  CHECK_THROWS_AS(load_config(std::filesystem::temp_directory_path().string(), {}), UserError);
  const File broken("{\"a\": 1,\n\"b\": }\n", ".json");
  try {
    load_config(broken.path, {});
    FAIL("nothing was thrown");
  } catch (const UserError& error) {
    CHECK_SAYS(std::string(error.what()), broken.path + ", line 2: broken JSON: syntax error");
  }
  CHECK_THROWS_AS(load_yaml("- a\n- b\n"), UserError);
}

TEST_CASE("config: LLaMA-Factory's own example loads, with its DeepSpeed file") {
  // Its ds_z3_config.json without sizes of buckets.
  const File deepspeed(
      R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
          "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
          "zero_allow_untested_optimizer": true, "fp16": {"enabled": "auto", "loss_scale": 0},
          "bf16": {"enabled": "auto"},
          "zero_optimization": {"stage": 3, "overlap_comm": false, "contiguous_gradients": true,
                                "sub_group_size": 1e9, "reduce_bucket_size": "auto"}})",
      ".json");
  std::string example =
      "### model\nmodel_name_or_path: Qwen/Qwen2.5-3B-Instruct\ntrust_remote_code: true\n\n"
      "### method\nstage: sft\ndo_train: true\nfinetuning_type: full\n"
      "deepspeed: examples/deepspeed/ds_z3_config.json  # choices: [ds_z0_config.json]\n\n"
      "### dataset\ndataset: identity,alpaca_en_demo\ntemplate: qwen\ncutoff_len: 2048\n"
      "max_samples: 1000\npreprocessing_num_workers: 16\ndataloader_num_workers: 4\n\n"
      "### output\noutput_dir: saves/qwen/full/sft\nlogging_steps: 10\nsave_steps: 500\n"
      "plot_loss: true\noverwrite_output_dir: true\nsave_only_model: false\n"
      "report_to: none  # choices: [none, wandb, tensorboard, swanlab, mlflow]\n\n"
      "### train\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 2\n"
      "learning_rate: 1.0e-5\nnum_train_epochs: 3.0\nlr_scheduler_type: cosine\n"
      "warmup_ratio: 0.1\nbf16: true\nddp_timeout: 180000000\nresume_from_checkpoint: null\n";
  const std::string theirs = "examples/deepspeed/ds_z3_config.json";
  example.replace(example.find(theirs), theirs.size(), deepspeed.path);
  const Config config = load_yaml(example);
  CHECK(config.memory.zero_stage == 3);
  CHECK(config.optimization.learning_rate == 1e-5);
  CHECK(config.optimization.lr_scheduler_type == "cosine");
  CHECK(config.parallel.ddp_timeout == 180000000);
}

TEST_CASE("config: the tables are sound") {
  std::set<std::string_view> names;
  const auto add = [&](std::string_view name) { CHECK_MESSAGE(names.insert(name).second, name); };
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) {
      add(key.name);
      CHECK_FALSE(key.help.empty());
    }
  }
  for (const IdleKey& key : idle_keys()) add(key.name);
  for (const RenamedKey& key : renamed_keys()) add(key.name);
  for (const OppositeKey& key : opposite_keys()) {
    add(key.name);
    CHECK(names.contains(key.of));
  }
  for (const UnsupportedKey& key : unsupported_keys()) add(key.name);
  // Every default is accepted, so writing it down changes nothing.
  json defaults = least();
  for (const KeyDescription& key : describe_keys()) {
    if (key.default_value.empty() || defaults.contains(key.name)) continue;
    const json value =
        json::accept(key.default_value) ? json::parse(key.default_value) : json(key.default_value);
    defaults[key.name] = value;
  }
  CHECK_NOTHROW(load(defaults));
}

TEST_CASE("edit_distance: insert, drop, replace, swap") {
  CHECK(edit_distance("seed", "seed") == 0);
  CHECK(edit_distance("sed", "seed") == 1);
  CHECK(edit_distance("seeed", "seed") == 1);
  CHECK(edit_distance("seex", "seed") == 1);
  CHECK(edit_distance("sede", "seed") == 1);
  CHECK(edit_distance("", "seed") == 4);
  CHECK(nearest_name("warmup_step", {"seed", "warmup_ratio", "warmup_steps"}) == "warmup_steps");
  // At most a third of the longer word.
  CHECK(nearest_name("seex", {"seed"}) == "seed");
  CHECK(nearest_name("xeex", {"seed"}) == "");
  CHECK(nearest_name("wandb", {"train", "init", "bench"}) == "");
  CHECK(nearest_name("d", {"dd"}) == "dd");
  CHECK(nearest_name("d", {"ddd"}) == "");
  CHECK(nearest_name("d", {}) == "");
  CHECK(suggestion("chats", {"books", "chat"}) == "the nearest is chat");
  CHECK(suggestion("chats", {"books", "chat"}, "file") == "the nearest file is chat");
  CHECK(suggestion("mine", {"books", "chat"}) == "there are: books, chat");
  CHECK(suggestion("mine", std::vector<std::string>(11, "a")) ==
        "there are: a, a, a, a, a, a, a, a, a, a, ...");
}

TEST_CASE("config: what is huge is told in short, and soon") {
  const std::string name(1'000'000, 'k');
  const std::string said = complaint({{name, 1}});
  CHECK_SAYS(said, "unknown key kkkk");
  CHECK_MESSAGE(said.size() < 400, said.size());
  CHECK(edit_distance(name, name + "x") == 0);  // only the first letters are compared
  json many = json::object();
  std::vector<std::string> words;
  for (int i = 0; i < 20'000; ++i) {
    many["key" + std::to_string(i)] = i;
    words.push_back("word" + std::to_string(i) + "=1");
  }
  // Each unknown key costs a search for the nearest one.
  const auto searches = [](const std::string& text) {
    int count = 0;
    for (size_t at = 0; (at = text.find("unknown key", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  for (const auto& [keys, overrides] :
       {std::pair(many, std::vector<std::string>()), std::pair(json::object(), words),
        std::pair(json{{"key1", 1}, {"key2", 2}}, words), std::pair(many, words)}) {
    const std::string of_many = complaint(keys, overrides);
    CHECK_SAYS(of_many, "at least 50 problems");
    CHECK(searches(of_many) == 50);
  }
}

}  // namespace longspan
