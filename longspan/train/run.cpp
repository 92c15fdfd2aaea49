// run_training: from a config to a trained model on disk.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "longspan/attention/block_kernel.h"
#include "longspan/comm/communication_error.h"
#include "longspan/comm/cuda.h"
#include "longspan/config/names.h"
#include "longspan/config/user_error.h"
#include "longspan/data/dataset.h"
#include "longspan/data/describe_sample.h"
#include "longspan/data/example_encoder.h"
#include "longspan/memory/activation_offload.h"
#include "longspan/memory/tensor_pool.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/text/tokenizer.h"
#include "longspan/train/agreement.h"
#include "longspan/train/plan_request.h"
#include "longspan/train/reference_cache.h"
#include "longspan/train/summary.h"
#include "longspan/train/trained_model.h"
#include "longspan/train/trainer.h"

namespace longspan {
namespace {

constexpr int kInterruptedStatus = 130;

struct Data {
  EncodedExamples train, eval;
};

/// What is known before any rank has spoken to another.
struct Shape {
  ModelConfig model;
  ParallelPlan plan;
};

Shape decide_shape(const Config& config, const Rendezvous& where) {
  Shape shape;
  shape.model = load_model_config(config.model_name_or_path);
  shape.plan = make_parallel_plan(plan_request(config, shape.model, where.world_size,
                                               where.local_world_size, cuda_available()));
  if (cuda_available()) use_gpu_of_rank(where.local_rank, where.local_world_size);
  return shape;
}

/// Cores are shared by the workers of a machine; OMP_NUM_THREADS says otherwise where it is set.
void choose_threads() {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  for (const char* name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                           "SLURM_NTASKS_PER_NODE"}) {
    const char* value = std::getenv(name);
    if (value == nullptr) continue;
    const int num_workers = std::max(1, std::atoi(value));
    const int num_cores = static_cast<int>(std::thread::hardware_concurrency());
    at::set_num_threads(std::max(1, num_cores / num_workers));
    return;
  }
}

/// attention_dropout of config.json: peers drop attention weights in training, which no fused or
/// distributed attention can repeat.
double attention_dropout_of(const ModelConfig& config) {
  const nlohmann::json json = nlohmann::json::parse(config.json, nullptr, false);
  if (!json.is_object() || !json.contains("attention_dropout")) return 0.0;
  const nlohmann::json& value = json.at("attention_dropout");
  return value.is_number() ? value.get<double>() : 0.0;
}

/// Reads and encodes the data sets; says what one example looks like.
Data read_data(const Config& config, const ModelConfig& model, Console& console) {
  Data data;
  const Tokenizer tokenizer = Tokenizer::load(config.model_name_or_path);
  const RunRows rows = read_run_rows(config);
  data.train = encode_examples(config, tokenizer, rows.train, model.vocab_size);
  if (!rows.eval.empty()) {
    data.eval = encode_examples(config, tokenizer, rows.eval, model.vocab_size);
  }
  if (!data.train.examples.empty()) {
    console.say(
        fmt::format("The first training example:\n{}\n",
                    describe_example(data.train.examples.front(), config.stage, tokenizer)));
  }
  if (data.train.packing) console.say(data.train.packing->text());
  return data;
}

/// Throws when ranks hold different data: every rank of a sequence group must hold the same rows.
void require_same_data(const Group& world, const Data& data) {
  uint64_t hash = 14695981039346656037ull;  // FNV-1a
  const auto mix = [&hash](const std::vector<int32_t>& numbers) {
    hash = (hash ^ numbers.size()) * 1099511628211ull;
    for (int32_t number : numbers) hash = (hash ^ static_cast<uint32_t>(number)) * 1099511628211ull;
  };
  for (const EncodedExamples* encoded : {&data.train, &data.eval}) {
    for (const Example& example : encoded->examples) {
      for (const Sample& document : example.documents) {
        mix(document.input_ids);
        mix(document.labels);
      }
      const std::vector<int64_t>& restarts = example.position_restarts;
      mix({restarts.begin(), restarts.end()});
      mix({static_cast<int32_t>(example.documents.size()), example.desirable});
    }
  }
  const std::vector<std::string> hashes = world.gather_text(fmt::format("{:x}", hash));
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

std::string device_text(const at::Device& device) {
  if (device.is_cuda()) return "CUDA";
  const int num_threads = at::get_num_threads();
  return fmt::format("CPU with {} thread{} each (CUDA: {})", num_threads,
                     num_threads == 1 ? "" : "s", why_no_cuda());
}

int run(const Config& config, const Rendezvous& where, InterruptWatch& interrupts) {
  choose_threads();
  Shape shape;
  rank_0_first(where.rank, [&] { shape = decide_shape(config, where); });
  const bool cuda = cuda_available();
  const at::Device device =
      cuda ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(where.local_rank))
           : at::Device(at::kCPU);
  if (device.is_cpu()) use_tensor_pool();
  PeakMeter meter(device);
  const Mesh mesh = make_mesh(where, shape.plan, cuda, config.ddp_timeout);
  const bool is_main = where.rank == 0;
  Console console(/*silent=*/!is_main);

  all_or_none(mesh.world, [&] {
    if (is_main) check_output_dir(config);
  });
  Data data;
  all_or_none(mesh.world, [&] { data = read_data(config, shape.model, console); });
  require_same_data(mesh.world, data);

  const std::unique_ptr<SequenceParallel> attention =
      make_attention(shape.plan, mesh, cuda ? cuda_block_kernel() : cpu_block_kernel());
  const bool bf16 = config.bf16 || config.pure_bf16;
  std::unique_ptr<ActivationOffload> activations;  // outlives every graph
  TrainedModel trained;
  std::unique_ptr<Decoder> model;
  all_or_none(mesh.world, [&] {
    if (config.offload_activations != "false") {
      const bool on_disk = config.offload_activations == "disk";
      activations =
          std::make_unique<ActivationOffload>(device, on_disk ? config.offload_folder : "");
    }
    trained = load_trained_model(config, shape.model, device);
    trained.options.activation_store = activations.get();
    model = std::make_unique<Decoder>(shape.model, trained.parameters, *attention, trained.options);
  });
  all_or_none(mesh.world, [&] {
    if (is_main) prepare_output_dir(config.output_dir);
  });

  AttentionTraffic traffic(mesh, shape.plan,
                           {.num_heads = shape.model.num_heads,
                            .num_kv_heads = shape.model.num_kv_heads,
                            .head_dim = shape.model.head_dim,
                            .element_bytes = bf16 ? 2 : 4},
                           shape.model.num_layers, !config.disable_gradient_checkpointing, device);
  interrupts.begin_steps();
  std::unique_ptr<Reference> reference;
  if (wants_reference(config)) {
    const auto make = [&] {
      return make_reference(config, trained, shape.model, *model, *attention, device);
    };
    if (!config.precompute_ref_log_probs) {
      all_or_none(mesh.world, [&] { reference = make(); });
    } else {
      std::vector<const Example*> examples;
      for (const EncodedExamples* encoded : {&data.train, &data.eval}) {
        for (const Example& example : encoded->examples) examples.push_back(&example);
      }
      const ReferenceJob job{config, mesh, *attention, device, std::move(examples), interrupts};
      std::optional<ReferenceTable> table = precompute_reference(job, make, console);
      if (!table) {
        interrupts.say("Interrupted; the reference log-probabilities so far are kept in " +
                       config.output_dir + ".");
        return kInterruptedStatus;
      }
      reference = reference_table(std::move(*table));
    }
  }
  const StageContext context{.config = config,
                             .mesh = mesh,
                             .attention = *attention,
                             .model = *model,
                             .device = device,
                             .reference = reference.get()};
  const std::unique_ptr<Stage> stage = make_stage(context);
  MemoryReport memory(meter,
                      memory_facts(config, shape.model, shape.plan, trained, data.train.examples,
                                   reference ? reference->num_bytes() : 0, cuda));
  const TrainingJob job{.context = context,
                        .stage = *stage,
                        .train_examples = data.train.examples,
                        .eval_examples = data.eval.examples,
                        .interrupts = interrupts,
                        .traffic = traffic,
                        .memory = memory};
  // Adapters and their optimizer are in fp32; so they are saved.
  const at::ScalarType saved_dtype = trained.lora ? (config.pure_bf16 ? at::kBFloat16 : at::kFloat)
                                                  : trained.options.compute_dtype;
  ModelSaver saver(config.output_dir,
                   {shape.model, saved_dtype, config.model_name_or_path, trained.lora},
                   config.save_total_limit);
  TrainingLog log(config.output_dir,
                  {.logging_steps = config.logging_steps,
                   .eval_steps = config.eval_steps.value_or(config.logging_steps),
                   .save_steps = config.save_steps,
                   .train_batch_size = config.per_device_train_batch_size,
                   .num_train_epochs = static_cast<int64_t>(std::ceil(config.num_train_epochs))});
  Trainer trainer(job, saver, log, console);
  console.say(summary_of({.config = config,
                          .model = shape.model,
                          .plan = shape.plan,
                          .steps = trainer.steps(),
                          .train_examples = data.train.examples,
                          .eval_examples = data.eval.examples,
                          .num_parameters = trained.num_parameters(),
                          .num_trained = trained.num_trained(),
                          .num_warmup_steps = trainer.num_warmup_steps(),
                          .device = device_text(device)}));
  console.say("\n" + memory.begin());
  if (const double dropout = attention_dropout_of(shape.model); dropout > 0) {
    console.say(
        fmt::format("config.json has attention_dropout {}; Longspan trains with 0.", dropout));
  }

  if (!config.save_only_model && config.save_strategy != "no") {
    console.say(
        "save_only_model: false changes nothing: a checkpoint is a model to start from, without "
        "the optimizer's state that resuming would need.");
  }
  if (const auto adapters = split_names(config.adapter_name_or_path); adapters.size() > 1) {
    console.say(fmt::format(
        "The saved adapter belongs to the model with {} merged into it; `longspan export` writes "
        "that model.",
        fmt::join(adapters.begin(), adapters.end() - 1, ", ")));
  }
  if (trainer.train()) {
    console.say(fmt::format("Saved the model and logs in {}", config.output_dir));
    return 0;
  }
  interrupts.say(fmt::format("Interrupted after step {} of {}; the step under way was left. {}",
                             trainer.progress().step, trainer.progress().total_steps,
                             saver.last_checkpoint().empty()
                                 ? "No model was saved."
                                 : "The last checkpoint is " + saver.last_checkpoint() + "."));
  return kInterruptedStatus;
}

}  // namespace

int run_training(const Config& config, const Rendezvous& where) {
  InterruptWatch interrupts(/*speaks=*/where.rank == 0);
  try {
    return run(config, where, interrupts);
  } catch (const UserError&) {
    throw;
  } catch (const FailedElsewhere&) {
    // Rank 0 is saying what happened; a launcher that sees this process end first would kill it.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return 1;
  } catch (const CommunicationError& error) {
    if (interrupts.requested()) {  // and so are the others, of which one was quicker
      interrupts.say("Interrupted; nothing more was saved.");
      return kInterruptedStatus;
    }
    throw UserError(
        fmt::format("{}\nThe messages of the rank that ended first say why; nothing "
                    "half-written was left behind.",
                    error.what()));
  }
}

}  // namespace longspan
