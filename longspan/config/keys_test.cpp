// Ways to write keys: in quotes, by old names, without effect, in other programs' files. Also their
// explanations.
#include "longspan/config/keys.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/data/turns.h"
#include "longspan/spec/rotary_spec.h"

namespace longspan {

namespace {

using nlohmann::json;

constexpr const char* kLeast = "model_name_or_path: m\ndataset: d\noutput_dir: o\ndo_train: true\n";

std::string write(const std::string& text) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("longspan_keys_test_" + std::to_string(getpid()) + ".yaml");
  std::ofstream(path) << text;
  return path.string();
}

Config load(const std::string& more, const std::vector<std::string>& words = {}) {
  return load_config(write(kLeast + more), words);
}

/// Returns the UserError's message; "" where none is thrown.
std::string complaint(const std::string& text, const std::vector<std::string>& words = {}) {
  try {
    load_config(write(text), words);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

std::string notes_of(const Config& config) {
  std::string all;
  for (const std::string& note : config.notes) all += note + "\n";
  return all;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

#define CHECK_SAYS(text, part) CHECK_MESSAGE(has(text, part), (text))

}  // namespace

TEST_CASE("keys: a run that only answers keeps nothing of a training's rows and checkpoints") {
  const std::string training =
      "eval_dataset: e\nstreaming: true\nbuffer_size: 8\nmax_steps: 5\neval_strategy: steps\n";
  const std::vector<std::string> answers{"do_train=false", "predict_with_generate=true",
                                         "do_predict=true"};
  const Config config = load(training, answers);
  CHECK(config.data.dataset.empty());
  CHECK(!config.data.streaming);
  CHECK(config.output.resume_from_checkpoint == "false");
  REQUIRE(!config.notes.empty());
  CHECK(config.notes[0].ends_with("of no effect: dataset, streaming, buffer_size."));
  CHECK(load("eval_dataset: e\neval_strategy: steps\ntokenized_path: t\n", answers)
            .data.tokenized_path.empty());
}

TEST_CASE("keys: numbers and truth values in quotes, 1 and 0 for true and false") {
  const Config config = load(
      "learning_rate: \"1e-4\"\ncutoff_len: '8'\nmax_steps: \"-1\"\nbf16: \"True\"\n"
      "plot_loss: 1\npacking: 0\nwarmup_ratio: \"+.5\"\nmax_samples: \"7\"\n"
      "run_name: \"12\"\n",
      {"do_train=1"});
  CHECK(config.optimization.learning_rate == 1e-4);
  CHECK(config.data.cutoff_len == 8);
  CHECK(config.optimization.max_steps == -1);
  CHECK(config.optimization.bf16);
  CHECK(config.output.plot_loss);
  CHECK(config.data.packing == false);
  CHECK(config.optimization.warmup_ratio == 0.5);
  CHECK(config.data.max_samples == 7);
  CHECK(config.method.do_train);
  CHECK(config.output.run_name == "12");  // text stays text
  CHECK_SAYS(complaint(kLeast + std::string("cutoff_len: \"8 tokens\"\n")),
             "\"8 tokens\" was given; wanted is a whole number");
  CHECK_SAYS(complaint(kLeast + std::string("cutoff_len: \"0\"\n")), "at least 1");
  CHECK_SAYS(complaint(kLeast + std::string("bf16: 2\n")), "wanted is true or false");
  CHECK_SAYS(complaint(kLeast + std::string("seed: true\n")), "wanted is a whole number");
}

TEST_CASE("keys: steps below 1 are a share of all steps") {
  const Config config = load(
      "save_steps: 0.25\nlogging_steps: 0.1\nwarmup_steps: 0.05\nval_size: 0.1\n"
      "eval_strategy: steps\neval_steps: 0.5\n");
  CHECK(config.output.save_steps == 0.25);
  CHECK(config.output.logging_steps == 0.1);
  CHECK(config.optimization.warmup_steps == 0.05);
  CHECK(config.optimization.eval_steps == 0.5);
  for (const char* key : {"save_steps", "logging_steps"}) {
    for (const char* value : {"0", "1.5", "-0.5"}) {
      CHECK_SAYS(complaint(fmt::format("{}{}: {}\n", kLeast, key, value)),
                 "a whole number, at least 1, or a share of all steps below 1");
    }
  }
  CHECK(load("warmup_steps: 0\n").optimization.warmup_steps == 0);
  CHECK_SAYS(complaint(kLeast + std::string("warmup_steps: 2.5\n")), "wanted is a whole number");
}

TEST_CASE("keys: those without effect are taken, and one line says so") {
  const Config config = load(
      "use_liger_kernel: true\nenable_liger_kernel: true\nuse_v1_kernels: true\n"
      "gradient_checkpointing: true\nddp_backend: nccl\nlog_level: info\nuse_cache: false\n"
      "include_num_input_tokens_seen: all\ngradient_checkpointing_kwargs: {use_reentrant: false}\n"
      "trust_remote_code: null\n");
  REQUIRE(config.notes.size() == 1);
  CHECK_SAYS(config.notes[0], "without effect here: ddp_backend, enable_liger_kernel, ");
  CHECK_SAYS(config.notes[0], "use_v1_kernels");
  CHECK(!has(config.notes[0], "trust_remote_code"));
  CHECK(load("").notes.empty());

  CHECK_SAYS(notes_of(load("logging_dir: one\n")), "without report_to: tensorboard there are none");
  CHECK_SAYS(notes_of(load("run_name: one\n")),
             "run_name is for report_to, which names no service");
  CHECK_SAYS(notes_of(load("data_seed: 7\nseed: 7\n")), "without effect here: data_seed (");
  CHECK(load("learning_rate: \" 1e-4 \"\nseed: \"+7 \"\n").optimization.seed == 7);
  CHECK_SAYS(complaint(kLeast + std::string("seed: \"+-7\"\n")), "seed: \"+-7\" was given");
  CHECK_SAYS(complaint(kLeast + std::string("rope_scaling: dynamic\n")), "take yarn");
  CHECK_SAYS(complaint(kLeast + std::string("infer_dtype: float32\n")),
             "infer_dtype: \"float32\" is for `longspan chat` and `longspan generate`");
  CHECK_SAYS(complaint(kLeast + std::string("data_seed: 7\n")), "data_seed and seed differ");
  CHECK(load("disable_tqdm: true\nlogging_first_step: true\nlogging_strategy: epoch\n")
            .output.disable_tqdm);
  CHECK(load("train_sampling_strategy: sequential\n").method.disable_shuffling);
  CHECK(!load("train_sampling_strategy: random\n").method.disable_shuffling);
  CHECK(load("use_cpu: true\n").model.device == "cpu");
  CHECK_SAYS(complaint(kLeast + std::string("use_cpu: true\ndevice: cuda\n")), "keep one");
}

TEST_CASE("keys: gradient_checkpointing is the opposite of disable_gradient_checkpointing") {
  const Config off = load("gradient_checkpointing: false\n");
  CHECK(off.model.disable_gradient_checkpointing);
  REQUIRE(off.notes.size() == 1);
  CHECK_SAYS(off.notes[0],
             "gradient_checkpointing: false was taken as disable_gradient_checkpointing: true");
  CHECK(load("gradient_checkpointing: \"False\"\n").model.disable_gradient_checkpointing);
  CHECK(load("", {"--gradient_checkpointing=0"}).model.disable_gradient_checkpointing);
  for (const char* value : {"true", "1", "null"}) {
    const Config on = load(fmt::format("gradient_checkpointing: {}\n", value));
    CHECK(!on.model.disable_gradient_checkpointing);
    CHECK(on.notes.empty());
  }
  CHECK_SAYS(complaint(kLeast + std::string("gradient_checkpointing: some\n")),
             "gradient_checkpointing, the opposite of disable_gradient_checkpointing: \"some\"");
  // Both keys are given.
  const std::string both =
      kLeast + std::string("gradient_checkpointing: {}\n") + "disable_gradient_checkpointing: {}\n";
  const auto said = [&](bool on, bool disabled) {
    return complaint(fmt::format(fmt::runtime(both), on, disabled));
  };
  CHECK(said(true, false).empty());
  CHECK(said(false, true).empty());
  CHECK_SAYS(said(true, true),
             "gradient_checkpointing: true and disable_gradient_checkpointing: true contradict");
  CHECK_SAYS(said(false, false), "contradict each other; keep one");
  // The command line replaces the file's value, by either name.
  CHECK(!load("gradient_checkpointing: false\n", {"disable_gradient_checkpointing=false"})
             .model.disable_gradient_checkpointing);
  CHECK(!load("disable_gradient_checkpointing: true\n", {"gradient_checkpointing=true"})
             .model.disable_gradient_checkpointing);
  CHECK_SAYS(complaint(kLeast, {"gradient_checkpointing=0", "disable_gradient_checkpointing=0"}),
             "command line: gradient_checkpointing: false and");
  CHECK_SAYS(complaint(kLeast + std::string("offload_activations: true\n"),
                       {"gradient_checkpointing=false"}),
             " and command line: offload_activations moves");
  CHECK_SAYS(explain_key("gradient_checkpointing"), "the opposite of disable_gradient_checkpoint");
  CHECK(nearest_key("gradient_checkpointin") == "gradient_checkpointing");
}

TEST_CASE("keys: an old name goes to the key of today, with a word about it") {
  const Config config = load("evaluation_strategy: epoch\nval_size: 0.1\nno_cuda: true\n");
  CHECK(config.optimization.eval_strategy == "epoch");
  CHECK(config.model.device == "cpu");
  CHECK_SAYS(notes_of(config), "evaluation_strategy is called eval_strategy now");
  CHECK_SAYS(notes_of(config), "no_cuda is called use_cpu now");
  CHECK_SAYS(complaint(kLeast + std::string("evaluation_strategy: steps\neval_strategy: no\n")),
             "both given; keep eval_strategy");
  CHECK_SAYS(complaint(kLeast + std::string("evaluation_strategy: never\n")),
             "evaluation_strategy, now eval_strategy: there is no \"never\"");
}

TEST_CASE("keys: a key and its value written with = and blanks") {
  CHECK_SAYS(complaint(kLeast + std::string("learning_rate = 1e-4\n")),
             "line 5: `learning_rate = 1e-4` is no `key: value`; write `learning_rate: 1e-4`");
  CHECK_SAYS(complaint("learning_rate = 1e-4\n"), "line 1: `learning_rate = 1e-4`");
  CHECK_SAYS(complaint("bf16: [true\n"), "line");
  const auto words = [](const std::vector<std::string>& given) { return complaint(kLeast, given); };
  for (const std::vector<std::string>& given :
       {std::vector<std::string>{"learning_rate", "=", "1e-4"},
        {"learning_rate=", "1e-4"},
        {"learning_rate", "=1e-4"},
        {"learning_rate:", "1e-4"},
        {"learning_rate = 1e-4"}}) {
    CHECK_SAYS(words(given), "; write learning_rate=1e-4");
  }
  CHECK(words({"eval_dataset=", "seed=3"}).empty());  // an empty value is none
}

TEST_CASE("keys: files of other programs are named") {
  CHECK_SAYS(complaint(kLeast + std::string("tensor_model_parallel_size: 4\n"
                                            "sequence_parallel: true\n")),
             "Megatron trainer (tensor_model_parallel_size), which is another format");
  CHECK_SAYS(complaint("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n"
                       "num_machines: 1\nnum_processes: 8\n"),
             "accelerate");
  CHECK_SAYS(complaint("base_model: x\ndatasets:\n- path: y\nmicro_batch_size: 1\n"), "axolotl");
  CHECK_SAYS(complaint(kLeast + std::string("image_do_pan_and_scan: true\n")),
             "no model here cuts pictures into tiles");
  CHECK(complaint(kLeast + std::string("image_do_pan_and_scan: false\n")).empty());
}

TEST_CASE("keys: forms in which other programs write sharding and Muon") {
  CHECK(load("fsdp: [full_shard, auto_wrap]\n").memory.zero_stage == 3);
  CHECK(load("fsdp: shard_grad_op offload\n").memory.offload_optimizer);
  CHECK(!load("fsdp: \"\"\n").memory.zero_stage);
  CHECK_SAYS(complaint(kLeast + std::string("fsdp: hybrid_shard\n")),
             "fsdp: hybrid_shard is not supported");
  CHECK_SAYS(complaint(kLeast + std::string("fsdp: full_shard\nzero_stage: 2\n")),
             "fsdp: full_shard means zero_stage 3, but zero_stage is 2");
  CHECK(load("use_muon: true\n").optimization.optim == "muon_match_rms_adamw");
  CHECK(load("use_muon: false\n").optimization.optim == "adamw_torch");
  CHECK_SAYS(complaint(kLeast + std::string("use_muon: true\noptim: adamw_8bit\n")),
             "use_muon: true and optim are both given");
}

TEST_CASE("keys: what is suggested is never a key that is itself refused") {
  for (const UnsupportedKey& key : unsupported_keys()) {
    for (const std::string& mistyped : {std::string(key.name) + "s", "x" + std::string(key.name),
                                        std::string(key.name.substr(1))}) {
      const std::string nearest = nearest_key(mistyped);
      for (const UnsupportedKey& other : unsupported_keys()) CHECK(nearest != other.name);
    }
  }
  CHECK(nearest_key("learning_rte") == "learning_rate");
  CHECK(nearest_key("num_epochs") == "num_train_epochs");
  CHECK(nearest_key("use_liger_kernal") == "use_liger_kernel");
  CHECK(nearest_key("quantization_bits") == "quantization_bit");
  CHECK(nearest_key("mixture_of_depth") == "");
  CHECK(nearest_key("batch_size") == "per_device_train_batch_size");  // not val_size
  CHECK(nearest_key("output") == "");
  CHECK_SAYS(complaint(kLeast + std::string("mixture_of_depth: 4\n")),
             "unknown key mixture_of_depth; `longspan help train` names all keys");
}

TEST_CASE("keys: each is explained") {
  const std::string beta = explain_key("pref_beta");
  CHECK_SAYS(beta, "pref_beta (Preferences");
  CHECK_SAYS(beta, "Takes: a number above 0");
  CHECK_SAYS(beta, "Default: 0.1");
  CHECK_SAYS(beta, "Stages: dpo, kto");
  CHECK_SAYS(explain_key("finetuning_type"), "LLaMA-Factory: The default there is lora.");
  CHECK_SAYS(explain_key("cutoff_len"), "Stages: all");
  CHECK_SAYS(explain_key("use_liger_kernel"), "without effect");
  CHECK_SAYS(explain_key("evaluation_strategy"), "is called eval_strategy now");
  CHECK_SAYS(explain_key("fp16"), "use bf16");
  CHECK(explain_key("cutof_len").empty());
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) {
      const std::string text = explain_key(key.name);
      CHECK_MESSAGE(has(text, "Takes: "), key.name);
      CHECK_MESSAGE(has(text, "LLaMA-Factory: ") == !key.differs.empty(), key.name);
    }
  }
}

TEST_CASE("keys: the list of all keys says which stages use a key") {
  const auto stages_of = [](const std::string& name) {
    for (const KeyDescription& key : describe_keys()) {
      if (key.name == name) {
        CHECK(!has(key.section, "dpo"));
        return key.stages;
      }
    }
    return std::string("no such key");
  };
  CHECK(stages_of("value_head_dropout") == "rm");
  CHECK(stages_of("pref_beta") == "dpo, kto");
  CHECK(stages_of("pref_share_prompt") == "dpo, rm");
  CHECK(stages_of("cutoff_len") == "");
}

TEST_CASE("keys: the schema has every key of the tables") {
  const json schema = json::parse(json_schema());
  const json& keys = schema.at("properties");
  CHECK(schema.at("additionalProperties") == false);
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) CHECK_MESSAGE(keys.contains(key.name), key.name);
  }
  for (const IdleKey& key : idle_keys()) CHECK_MESSAGE(keys.contains(key.name), key.name);
  for (const UnsupportedKey& key : unsupported_keys())
    CHECK_MESSAGE(keys.contains(key.name), key.name);
  for (const OppositeKey& key : opposite_keys()) {
    CHECK(keys.at(key.name).at("anyOf") == keys.at(key.of).at("anyOf"));
    CHECK(!keys.at(key.name).contains("default"));
  }
  CHECK(keys.at("stage").at("anyOf").at(0).at("enum").size() == 8);
  CHECK(keys.at("cutoff_len").at("default") == 2048);
}

TEST_CASE("keys: words that another register has are its words") {
  const auto words_of = [](std::string_view name) {
    for (const KeySection& section : key_sections()) {
      for (const Key& key : section.keys) {
        if (key.name == name) return std::set<std::string>(key.choices.begin(), key.choices.end());
      }
    }
    return std::set<std::string>();
  };
  const std::vector<std::string> templates = named_templates();
  CHECK(words_of("template") == std::set<std::string>(templates.begin(), templates.end()));
  // Users cannot choose longrope, whose factors come with a model, or a word for no scaling.
  std::set<std::string> scalings;
  for (const auto& [name, type] : kRopeTypes) {
    if (type == RopeScaling::Type::kDefault || type == RopeScaling::Type::kLongrope) continue;
    scalings.emplace(name);
  }
  CHECK(words_of("rope_scaling") == scalings);
}

}  // namespace longspan
