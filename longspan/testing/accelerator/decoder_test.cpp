// The decoder on a device: the same numbers as on the CPU, no races, and the known number of
// launches and host waits.
#include "longspan/models/decoder.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/cuda/kernels.h"
#include "longspan/kernels/dropout.h"
#include "longspan/kernels/gemm.h"
#include "longspan/memory/activation_offload.h"
#include "longspan/memory/copier.h"
#include "longspan/memory/host_memory.h"
#include "longspan/memory/peak_meter.h"
#include "longspan/memory/side_stream.h"
#include "longspan/models/lora.h"
#include "longspan/objectives/sft.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/accelerator/accelerator.h"
#include "longspan/testing/accelerator/attention.h"
#include "longspan/testing/accelerator/host_waits.h"
#include "longspan/testing/accelerator/planted.h"
#include "longspan/testing/accelerator/streams_for_tests.h"
#include "longspan/testing/plain_model.h"

namespace longspan::testing::accelerator {
namespace {

std::vector<NamedTensor> moved(const std::vector<NamedTensor>& parameters, at::Device to,
                               at::ScalarType dtype) {
  std::vector<NamedTensor> there;
  for (const NamedTensor& parameter : parameters) {
    at::Tensor leaf = parameter.tensor.detach().to(to, dtype, /*non_blocking=*/false,
                                                   /*copy=*/true);
    there.push_back({parameter.name, leaf.requires_grad_(parameter.tensor.requires_grad())});
  }
  return there;
}

/// Returns loss and gradients of one row, on the host.
std::map<std::string, at::Tensor> results_on(at::Device where, at::ScalarType dtype,
                                             DecoderOptions options, bool offloads = false) {
  const ModelSpec spec = small_model(/*tied=*/true, /*biases=*/true);
  const Batch batch = longspan::on_device(random_batch(spec, {9, 1, 14}, 0.7), where);
  const BlockKernel& kernel = where.is_cpu() ? cpu_block_kernel() : block_kernel();
  const auto attention = make_local(kernel);
  std::unique_ptr<ActivationOffload> store;
  if (offloads) store = std::make_unique<ActivationOffload>(where);
  options.activation_store = store.get();
  Decoder model(spec, moved(random_leaves(spec), where, dtype), *attention, options);
  const at::Tensor loss = sft_loss(model, batch, 7);
  torch::autograd::backward({loss}, {});
  std::map<std::string, at::Tensor> results{{"loss", loss.detach().cpu()}};
  for (const auto& [name, gradient] : take_gradients(model.parameters())) {
    results[name] = gradient.cpu();
  }
  return results;
}

void check_same_bits(const std::map<std::string, at::Tensor>& actual,
                     const std::map<std::string, at::Tensor>& expected) {
  CHECK(actual.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    INFO(name);
    REQUIRE(actual.contains(name));
    CHECK(actual.at(name).equal(tensor));
  }
}

// The CPU has its own loops where a device has ATen operators; the plain version uses ATen
// operators on both.
TEST_CASE("accelerator: a decoder of plain layers has the CPU's bits") {
  install();
  const DecoderOptions options{.plain_layers = true};
  const auto actual = results_on(device(), at::kDouble, options);
  const auto expected = results_on(at::kCPU, at::kDouble, options);
  CHECK(actual.at("loss").equal(expected.at("loss")));
  check_equal(actual, expected);
}

TEST_CASE("accelerator: a decoder's loss and gradients in fp64 are the CPU's") {
  install();
  const cuda::WithoutKernels without;
  for (const bool checkpointing : {false, true}) {
    CAPTURE(checkpointing);
    const DecoderOptions options{.gradient_checkpointing = checkpointing};
    check_equal(results_on(device(), at::kDouble, options),
                results_on(at::kCPU, at::kDouble, options));
  }
}

TEST_CASE("accelerator: attention forward and backward has the CPU's bits") {
  install();
  const Packing packing = Packing::from_lengths({9, 1, 14});
  const int64_t T = packing.num_tokens();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    at::manual_seed(4);
    const AttentionSpec spec =
        plain_attention(/*num_heads=*/6, /*num_kv_heads=*/2, /*head_dim=*/16);
    const at::Tensor q = at::randn({T, 6, 16}).to(dtype), k = at::randn({T, 2, 16}).to(dtype),
                     v = at::randn({T, 2, 16}).to(dtype), dout = at::randn({T, 6, 16}).to(dtype);
    const std::vector<Block> blocks{{0, 9, 0, 9, true}, {9, 1, 9, 1, true}, {10, 14, 10, 14, true}};
    const auto there = [](const at::Tensor& x) { return x.to(device()); };
    const AttentionResult cpu = cpu_block_kernel().forward(q, k, v, spec, blocks),
                          gpu = block_kernel().forward(there(q), there(k), there(v), spec, blocks);
    CHECK(gpu.out_TNH.cpu().equal(cpu.out_TNH));
    CHECK(gpu.lse_NT.cpu().equal(cpu.lse_NT));
    const AttentionGradients of_cpu = cpu_block_kernel().backward(
                                 {dout, q, k, v, cpu.out_TNH, cpu.lse_NT}, spec, blocks),
                             of_gpu = block_kernel().backward({there(dout), there(q), there(k),
                                                               there(v), gpu.out_TNH, gpu.lse_NT},
                                                              spec, blocks);
    CHECK(of_gpu.dq_TNH.cpu().equal(of_cpu.dq_TNH));
    CHECK(of_gpu.dk_SMH.cpu().equal(of_cpu.dk_SMH));
    CHECK(of_gpu.dv_SMH.cpu().equal(of_cpu.dv_SMH));
  }
}

TEST_CASE("accelerator: gemms of bf16 matrices give fp32 and are added to it, with no rounding") {
  install();
  at::manual_seed(4);
  const at::Tensor a = at::randn({9, 40}).to(at::kBFloat16),
                   b = at::randn({40, 7}).to(at::kBFloat16);
  const at::Tensor expected = a.to(at::kFloat).mm(b.to(at::kFloat));
  const at::Tensor c = gemm_out(at::empty({9, 7}, on_device()), a.to(device()), b.to(device()));
  CHECK(c.cpu().equal(expected));
  CHECK(add_gemm_(c, a.to(device()), b.to(device())).cpu().equal(2 * expected));
}

TEST_CASE("accelerator: activations in the host's memory change no bit") {
  install();
  const cuda::WithoutKernels without;
  const auto expected = results_on(device(), at::kDouble, {});
  check_same_bits(results_on(device(), at::kDouble, {}, /*offloads=*/true), expected);
}

TEST_CASE("accelerator: launches and waits of the host in a step of a small decoder are bounded") {
  install();
  const cuda::WithoutKernels without;
  const auto attention = make_local(block_kernel());
  const auto counted = [&](int64_t num_layers, bool checkpointing, bool asks_for_loss = false) {
    ModelSpec spec = small_model(/*tied=*/true, /*biases=*/false);
    spec.num_layers = num_layers;
    const Batch batch = longspan::on_device(random_batch(spec, {9, 1, 14}, 0.7), device());
    Decoder model(spec, moved(random_leaves(spec), device(), at::kFloat), *attention,
                  {.gradient_checkpointing = checkpointing, .compute_dtype = at::kBFloat16});
    Counters counters;
    for (int step = 0; step < 2; ++step) {  // the first makes gradients, the second adds to them
      Machine::get().restart_counters();
      waits_at_most(0, [&] {
        const at::Tensor loss = sft_loss(model, batch, 7);
        if (asks_for_loss) static_cast<void>(loss.item<double>());
        torch::autograd::backward({loss}, {});
      });
      counters = Machine::get().counters();
    }
    return counters;
  };
  for (const bool checkpointing : {false, true}) {
    CAPTURE(checkpointing);
    const Counters two = counted(2, checkpointing), four = counted(4, checkpointing);
    // With ATen operators alone, without row kernels.
    CHECK((four.launches - two.launches) / 2 <= (checkpointing ? 220 : 175));
  }
  check_planted({{"an extra .item() in a step", Fault::kHostWaits,
                  [&](bool faulty) { counted(1, /*checkpointing=*/true, faulty); }}});
}

TEST_CASE("accelerator: feed-forwards that are kept have the same bits, and fewer launches") {
  install();
  const cuda::WithoutKernels without;
  const auto attention = make_local(block_kernel());
  const ModelSpec spec = small_model(/*tied=*/true, /*biases=*/false);
  const Batch batch = longspan::on_device(random_batch(spec, {9, 1, 14}, 0.7), device());
  std::map<std::string, at::Tensor> results[3];
  int64_t launches[3];
  for (const int64_t kept : {0, 1, 2}) {
    Decoder model(spec, moved(random_leaves(spec), device(), at::kFloat), *attention,
                  {.compute_dtype = at::kBFloat16});
    model.keep_feed_forwards(kept);
    torch::autograd::backward({sft_loss(model, batch, 7)}, {});
    take_gradients(model.parameters());
    Machine::get().restart_counters();
    torch::autograd::backward({sft_loss(model, batch, 7)}, {});
    launches[kept] = Machine::get().counters().launches;
    CHECK(Machine::get().counters().host_syncs == 0);
    for (const auto& [name, gradient] : take_gradients(model.parameters())) {
      results[kept][name] = gradient.cpu();
    }
  }
  check_same_bits(results[1], results[0]);
  check_same_bits(results[2], results[0]);
  // Two gemms and the copies between them.
  CHECK(launches[0] - launches[1] >= 2);
  CHECK(launches[1] - launches[2] >= 2);
}

/// A decoder with adapters with dropout on all linear layers.
struct Adapted {
  ModelSpec spec = small_model(/*tied=*/true, /*biases=*/false);
  std::vector<NamedTensor> parameters;
  DecoderOptions options;

  explicit Adapted(int64_t num_layers) {
    spec.num_layers = num_layers;
    LoraShape shape;
    shape.r = 3;
    shape.alpha = 6;
    shape.modules = lora_modules_from("all", spec);
    parameters = random_leaves(spec);
    for (NamedTensor& base : parameters) base.tensor.set_requires_grad(false);
    at::manual_seed(5);
    for (const auto& [name, tensor] : new_lora_parameters(spec, shape, 1)) {
      parameters.push_back(
          {name, at::randn(tensor.sizes(), at::kDouble).mul_(0.1).requires_grad_(true)});
    }
    options.lora_scale = shape.scale();
    options.lora_dropout = 0.3;
  }

  /// Returns loss and gradients, and the number of launches in the second of two steps.
  std::pair<std::map<std::string, at::Tensor>, int64_t> step(at::Device where, at::ScalarType dtype,
                                                             const Batch& batch) const {
    const auto attention = make_local(where.is_cpu() ? cpu_block_kernel() : block_kernel());
    Decoder model(spec, moved(parameters, where, dtype), *attention, options);
    model.set_dropout_seed(17);
    std::map<std::string, at::Tensor> results;
    int64_t launches = 0;
    for (int i = 0; i < 2; ++i) {
      Machine::get().restart_counters();
      const at::Tensor loss = sft_loss(model, longspan::on_device(batch, where), 7);
      torch::autograd::backward({loss}, {});
      launches = Machine::get().counters().launches;
      CHECK(Machine::get().counters().host_syncs == 0);
      results = {{"loss", loss.detach().cpu()}};
      for (const auto& [name, gradient] : take_gradients(model.parameters())) {
        results[name] = gradient.cpu();
      }
    }
    return {results, launches};
  }
};

TEST_CASE("accelerator: dropout of adapters is the CPU's, in as few launches whatever the rows") {
  install();
  const cuda::WithoutKernels without;
  const Batch few = random_batch(Adapted(1).spec, {9, 1, 14}, 0.7),
              many = random_batch(Adapted(1).spec, {500, 1, 700}, 0.7);
  for (const Batch& batch : {few, many}) {
    check_equal(Adapted(2).step(device(), at::kDouble, batch).first,
                Adapted(2).step(at::kCPU, at::kDouble, batch).first);
  }
  const auto of_a_layer = [&](const Batch& batch) {
    return (Adapted(4).step(device(), at::kFloat, batch).second -
            Adapted(2).step(device(), at::kFloat, batch).second) /
           2;
  };
  // Chunks of 256 rows would need five times as many launches.
  CHECK(of_a_layer(many) == of_a_layer(few));
  const Dropout dropout{0.3, 17, at::arange(5000, on_device().dtype(at::kLong))};
  const at::Tensor x = at::ones({5000, 8}, on_device());
  Machine::get().restart_counters();
  dropout.apply(x);
  CHECK(Machine::get().counters().launches <= 42);
  CHECK(of_a_layer(few) <= 1400);  // adapters of seven linear layers, with ATen operators alone
}

TEST_CASE("accelerator: the copier goes there and back beside the computation") {
  install();
  Copier copier(device());
  const at::Tensor x = at::randn({300, 70}, on_device());
  const at::Tensor host = empty_on_host_like(x), back = at::empty_like(x);
  const Copy out = copier.start(host, x);
  const Copy in = copier.start(back, host);
  Machine::get().restart_counters();
  in.wait();
  CHECK((back - x).abs().max().item<float>() == 0);
  CHECK(Machine::get().counters().host_syncs == 1);  // item's
  CHECK_NOTHROW(copier.start(host, x));
  CHECK_THROWS_AS(x.add_(at::ones({300, 70}, on_device())), FaultError);  // the copy reads it
}

TEST_CASE("accelerator: a copier of a device that has failed ends, and throws nothing") {
  install();
  const at::Tensor x = at::ones({64}, on_device());
  const at::Tensor host = empty_on_host_like(x);
  int64_t num_failures = 0;
  {
    Copier copier(device());
    copier.start(host, x);
    Machine::get().after_host_syncs([&](const Counters& /*counters*/) {
      ++num_failures;
      throw std::runtime_error("the device has failed");
    });
  }
  Machine::get().after_host_syncs({});
  CHECK(num_failures == 1);
}

TEST_CASE("accelerator: work on a side stream is joined by the host or by the current stream") {
  install();
  const SideStream side(device());
  const at::Tensor x = at::ones({64}, on_device());
  at::Tensor y;
  const auto finish = side.run([&] { y = x * 2; });
  CHECK_THROWS_AS(y.sum(), FaultError);
  finish();
  CHECK(y.sum().item<float>() == 128);
  at::Tensor z;
  side.run([&] { z = x * 3; });
  side.join();
  CHECK(z.sum().item<float>() == 192);
}

TEST_CASE("accelerator: the peak of memory is what its tensors ask for") {
  install();
  PeakMeter meter(device());
  meter.restart();
  const int64_t before = Machine::get().bytes(0).now;
  {
    const at::Tensor x = at::zeros({1000}, on_device());
  }
  CHECK(meter.peak().device - before == 4000);
}

}  // namespace
}  // namespace longspan::testing::accelerator
