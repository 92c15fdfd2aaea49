#include "longspan/config/v1_format.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/config/global_batch.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

const std::string kV1 =
    "model: m\nmodel_class: llm\ntrain_dataset: d.yaml\noutput_dir: o\nmicro_batch_size: 2\n";

Config load_v1(const std::string& more, const std::vector<std::string>& words = {}) {
  const testing::TemporaryFolder folder;
  return load_config(folder.write("v1.yaml", kV1 + more), words);
}

/// Returns the UserError's message; "" where none is thrown.
std::string problem_of_v1(const std::string& more, const std::vector<std::string>& words = {}) {
  try {
    load_v1(more, words);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("v1: a file is read with v1's defaults") {
  const Config config = load_v1("kernel_config:\n  name: auto\nmax_new_tokens: 128\n");
  CHECK(config.model.model_name_or_path == "m");
  CHECK(config.data.dataset == "d.yaml");
  CHECK(config.data.chat_template == "qwen3_nothink");
  CHECK(config.data.v1_rows);
  CHECK(config.method.stage == "sft");
  CHECK(config.method.finetuning_type == "full");
  CHECK(config.optimization.per_device_train_batch_size == 2);
  CHECK(config.optimization.learning_rate == 1e-4);
  CHECK(config.optimization.lr_scheduler_type == "constant");
  CHECK(config.optimization.weight_decay == 0.01);
  CHECK(config.optimization.bf16);
  CHECK(config.output.save_strategy == "no");
  REQUIRE(!config.notes.empty());
  CHECK(says(config.notes[0], "kernel_config (Longspan has its own kernels)"));
  CHECK(says(config.notes[0], "max_new_tokens (training samples nothing)"));
  CHECK(!load_config(testing::TemporaryFolder().write("own.yaml",
                                                      "model_name_or_path: m\ndataset: d\n"
                                                      "output_dir: o\ndo_train: true\n"),
                     {})
             .data.v1_rows);
}

TEST_CASE("v1: sections become keys") {
  const Config lora = load_v1(
      "peft_config:\n  name: lora\n  r: 16\n  target_modules: [q_proj, v_proj]\n"
      "dist_config:\n  name: fsdp2\n  dcp_path: null\n  cp_mode: ulysses\n  cp_size: 2\n"
      "save_steps: 5\nbatching_strategy: dynamic_padding_free\nbf16: false\n");
  CHECK(lora.method.finetuning_type == "lora");
  CHECK(lora.method.lora_rank == 16);
  CHECK(lora.method.lora_alpha == 16);  // v1's default
  CHECK(lora.method.lora_dropout == 0.05);
  CHECK(lora.method.lora_target == "q_proj,v_proj");
  CHECK(lora.memory.zero_stage == 3);
  CHECK(lora.parallel.sequence_parallel_size == 2);
  CHECK(lora.parallel.sequence_parallel_mode == "ulysses");
  CHECK(lora.output.save_strategy == "steps");
  CHECK(lora.data.neat_packing);
  CHECK(!lora.optimization.bf16);
  const Config freeze = load_v1(
      "peft_config: {name: freeze, freeze_trainable_layers: 3, freeze_extra_modules: null}\n",
      {"dist_config.name=fsdp2", "dist_config.offload_params=true", "micro_batch_size=1",
       "learning_rate=1e-3"});
  CHECK(freeze.method.freeze_trainable_layers == 3);
  CHECK(freeze.memory.offload_params);
  CHECK(freeze.memory.offload_optimizer);
  CHECK(freeze.optimization.per_device_train_batch_size == 1);
  CHECK(freeze.optimization.learning_rate == 1e-3);
}

TEST_CASE("v1: what is not known is refused by name") {
  CHECK(says(problem_of_v1("micro_batchsize: 1\n"), "unknown key micro_batchsize"));
  CHECK(says(problem_of_v1("peft_config: {name: lora, rank: 4}\n"),
             "peft_config: unknown key rank; there are: r,"));
  CHECK(says(problem_of_v1("peft_config: {name: oft}\n"),
             "peft_config: its name is \"oft\"; wanted is lora or freeze"));
  CHECK(says(problem_of_v1("dist_config: {name: fsdp2, dcp_path: /x}\n"), "dist_config.dcp_path"));
  CHECK(says(problem_of_v1("peft_config: {name: lora}\nquant_config: {name: bnb, "
                           "quantization_bit: 3}\n"),
             "quantization_bit: 3 is known but not supported"));
  CHECK(says(problem_of_v1("quant_config: {name: bnb}\n"), "finetuning_type: lora"));
  CHECK(says(problem_of_v1("optim_config: {name: muon}\n"), "optim_config: v1 has no such"));
  CHECK(says(problem_of_v1("", {"model_class=cls"}),
             "model_class: \"cls\" was given; wanted is llm"));
  CHECK(says(problem_of_v1("batching_strategy: random\n"), "dynamic_padding_free"));
  CHECK(says(problem_of_v1("save_epochs: 0.5\n"), "save_epochs: 1 or save_steps is supported"));
}

TEST_CASE("v1: the global batch decides the micro-batches of a step") {
  const Config config = load_v1("global_batch_size: 16\n");
  CHECK(with_global_batch(config, 1).optimization.gradient_accumulation_steps == 8);
  CHECK(with_global_batch(config, 4).optimization.gradient_accumulation_steps == 2);
  CHECK_THROWS_AS(with_global_batch(config, 3), UserError);
  Config shared = config;
  shared.parallel.sequence_parallel_size = 4;
  CHECK(with_global_batch(shared, 4).optimization.gradient_accumulation_steps == 8);
  CHECK(says(problem_of_v1("global_batch_size: 16\ngradient_accumulation_steps: 2\n"),
             "global_batch_size and gradient_accumulation_steps are both given"));
}

}  // namespace
}  // namespace longspan
