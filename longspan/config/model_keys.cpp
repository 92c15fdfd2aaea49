// Keys: the model, and the device that computes.
#include "longspan/config/config.h"
#include "longspan/config/key_tables.h"

namespace longspan::key_tables {

KeySection model_keys() {
  using S = ModelSettings;
  using enum OnResume;
  Key quantization_bit = number(
      "quantization_bit", &S::quantization_bit, kRefused, 1,
      "4: hold the frozen matrices of linear layers in 4 bits, in bitsandbytes' format, and "
      "compute in bf16 (QLoRA). 8: in 8 bits, and multiply with inputs in 8 bits (LLM.int8). "
      "Left out: in bf16 or fp32.",
      8);
  Key adapters = plain("adapter_name_or_path", &S::adapter_name_or_path, kFree,
                       "LoRA adapter folders, with commas between. The last adapter is trained "
                       "further; the others are merged into the model.");
  adapters.list = true;
  Key rope_scaling =
      choice("rope_scaling", &S::rope_scaling, kFree, {"linear", "yarn", "llama3"},
             "Stretch the rotary positions to rows longer than max_position_embeddings. The saved "
             "config.json has the scaling. Left out: as config.json says.",
             {"dynamic"});
  rope_scaling.unsupported_remedy =
      "it stretches each row by its own length, so that a token's angle depends on what comes "
      "after it; take yarn";
  return {
      "Model",
      {noted(plain("model_name_or_path", &S::model_name_or_path, kFree,
                   "A Hugging Face model folder on this machine."),
             "A model's name on a hub works there; here nothing is fetched."),
       adapters,
       noted(
           choice("flash_attn", &S::flash_attn, kFree, {"auto", "disabled", "sdpa", "fa2", "fa3"},
                  "Accepted for compatibility and ignored: the program chooses its kernel itself."),
           "The value chooses among kernels there."),
       quantization_bit,
       choice("quantization_method", &S::quantization_method, kFree, {"bnb", "bitsandbytes"},
              "The program whose format quantization_bit takes.",
              {"hqq", "eetq", "gptq", "awq", "aqlm", "quanto", "mxfp4", "fp8"}),
       choice("quantization_type", &S::quantization_type, kRefused, {"nf4", "fp4"},
              "The values of quantization_bit: 4."),
       plain("double_quantization", &S::double_quantization, kRefused,
             "Hold the scales of quantization_bit: 4 in 8 bits."),
       plain("disable_gradient_checkpointing", &S::disable_gradient_checkpointing, kFree,
             "Keep all activations: faster, more memory."),
       plain("pure_bf16", &S::pure_bf16, kNamed,
             "Weights, gradients and optimizer state in bfloat16."),
       rope_scaling,
       noted(choice("device", &S::device, kFree, {"auto", "cuda", "cpu"},
                    "Where to compute. auto: on GPUs if there are any, one for each process."),
             kOwn),
       plain("use_cpu", &S::use_cpu, kFree, "The same as device: cpu."),
       noted(plain("share_gpus", &S::share_gpus, kFree,
                   "On GPUs: allow more processes than GPUs. They share the GPUs and exchange "
                   "through host memory. For tests and small trials: it is slow."),
             kOwn),
       plain("full_determinism", &S::full_determinism, kFree,
             "On GPUs: runs are bit-reproducible, also across a resume. (CPU runs always are.)"),
       noted(choice("reduce_scatter", &S::reduce_scatter, kNamed, {"auto", "nccl", "exchange"},
                    "On GPUs: the sum over processes of gradients that these processes share out. "
                    "nccl: NCCL's reduce-scatter in fp32; its rings send an eighth of the bytes "
                    "through each network card of machines with 8 GPUs, and the order of the sum "
                    "depends on the machines. exchange: an all-to-all and a sum in the order of "
                    "processes, as on CPUs. auto: nccl; with full_determinism, exchange."),
             kOwn),
       plain("tf32", &S::tf32, kNamed,
             "On GPUs: gemms round their fp32 numbers to ten bits first (TF32), and are faster.")}};
}

}  // namespace longspan::key_tables
