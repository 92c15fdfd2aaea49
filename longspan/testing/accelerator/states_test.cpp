// Sharded and offloaded states, and their copies.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "longspan/comm/backend.h"
#include "longspan/comm/link.h"
#include "longspan/memory/copier.h"
#include "longspan/memory/host_memory.h"
#include "longspan/optim/adamw_8bit_device.h"
#include "longspan/optim/block_quantization.h"
#include "longspan/optim/flat_parameters.h"
#include "longspan/testing/accelerator/accelerator.h"
#include "longspan/testing/accelerator/process_group.h"
#include "longspan/testing/accelerator/simulated_kernels.h"
#include "longspan/testing/accelerator/streams_for_tests.h"

namespace longspan::testing::accelerator {
namespace {

TEST_CASE("accelerator: copies of one direction do not wait for those of the other") {
  install();
  Copier copier(device());
  const at::Tensor x = at::ones({300}, on_device()), y = at::empty_like(x);
  const at::Tensor on_host = empty_on_host_like(x), other = empty_on_host_like(x).fill_(2);
  const Copy out = copier.start(on_host, x);
  copier.start(y, other).wait();
  CHECK(y.sum().cpu().item<float>() == 600);
  // Nothing has waited for the first copy, to the host, which reads x.
  const Copy again = copier.start(on_host, x);
  copier.start(y, other).wait();
  CHECK_THROWS_AS(x.add_(1), FaultError);
  again.wait();
  CHECK_NOTHROW(x.add_(1));
}

TEST_CASE("accelerator: a copy back waits for the copy to the host, and the next for it") {
  install();
  Copier copier(device());
  const at::Tensor x = at::ones({300}, on_device()), y = at::empty_like(x);
  const at::Tensor on_host = empty_on_host_like(x);
  copier.start(on_host, x);
  const Copy back = copier.start(y, on_host);
  const Copy out = copier.start(on_host, at::full({300}, 3, on_device()));
  back.wait();
  CHECK(y.sum().cpu().item<float>() == 300);
  out.wait_on_host();
  CHECK(on_host.sum().item<float>() == 900);
}

TEST_CASE("accelerator: 8-bit states are the same in parts, which take less memory") {
  install();
  constexpr int64_t kNumbers = 40 * kQuantizationBlock + 70, kBlocks = 41;
  const Factors8bit factors{0.9F, 0.99F, 1e-8F, 0.999F, 0.01F, 0.1F};
  struct Result {
    std::vector<at::Tensor> numbers;
    int64_t bytes;
  };
  const auto updated = [&](int64_t at_once) {
    at::manual_seed(7);
    const auto codes = at::TensorOptions(device()).dtype(at::kByte);
    const Moments8bit moments{
        at::full({kNumbers}, 130, codes), at::full({kBlocks}, 0.5, on_device()),
        at::full({kNumbers}, 90, codes), at::full({kBlocks}, 0.25, on_device())};
    const at::Tensor gradient = at::randn({kNumbers}).to(device()),
                     values = at::randn({kNumbers}).to(device());
    Machine::get().restart_peak(0);
    const int64_t before = Machine::get().bytes(0).now;
    update_8bit_composed(moments, gradient, values, factors, at_once);
    return Result{{values.cpu(), moments.first_codes.cpu(), moments.first_scales.cpu(),
                   moments.second_codes.cpu(), moments.second_scales.cpu()},
                  Machine::get().bytes(0).most - before};
  };
  const Result whole = updated(41 * kQuantizationBlock), parts = updated(8 * kQuantizationBlock);
  for (size_t i = 0; i < whole.numbers.size(); ++i) {
    CAPTURE(i);
    CHECK(parts.numbers[i].equal(whole.numbers[i]));
  }
  CHECK(parts.bytes < whole.bytes / 4);
}

TEST_CASE("accelerator: 8-bit states are updated by one launch, in place, with the CPU's bits") {
  install();
  const cuda::WithKernels lent(simulated_kernels(0));
  constexpr int64_t kNumbers = 40 * kQuantizationBlock + 70, kBlocks = 41;
  const Factors8bit factors{0.9F, 0.99F, 1e-8F, 0.999F, 0.01F, 0.1F};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    at::manual_seed(8);
    const auto numbers = [&] { return at::randn({kNumbers}, at::kFloat).to(dtype); };
    const auto codes = [] { return at::randint(0, 256, {kNumbers}, at::kByte); };
    const auto scales = [] { return at::rand({kBlocks}, at::kFloat); };
    const at::Tensor gradient = numbers(), values = numbers();
    const Moments8bit moments{codes(), scales(), codes(), scales()};
    const auto sent = [](const at::Tensor& x) { return x.to(device()); };
    const at::Tensor gradient_there = sent(gradient), values_there = sent(values);
    const Moments8bit there{sent(moments.first_codes), sent(moments.first_scales),
                            sent(moments.second_codes), sent(moments.second_scales)};
    Machine::get().restart_counters();
    Machine::get().restart_peak(0);
    const int64_t before = Machine::get().bytes(0).now;
    update_8bit_on_gpu(there, gradient_there, values_there, factors);
    const Counters counters = Machine::get().counters();
    CHECK(counters.launches == 1);
    CHECK(counters.host_syncs == 0);
    CHECK(Machine::get().bytes(0).most == before);
    update_8bit_on_cpu(moments, gradient, values, factors);
    CHECK(values_there.cpu().equal(values));
    CHECK(there.first_codes.cpu().equal(moments.first_codes));
    CHECK(there.first_scales.cpu().equal(moments.first_scales));
    CHECK(there.second_codes.cpu().equal(moments.second_codes));
    CHECK(there.second_scales.cpu().equal(moments.second_scales));
  }
}

std::vector<ParameterSource> two_sources() {
  const auto source = [](const char* name, double value) {
    ParameterSpec spec;
    spec.name = name;
    spec.shape = {30, 5};
    return ParameterSource{spec, at::kFloat, /*trained=*/true,
                           [value] { return at::full({30, 5}, value, at::kFloat); }};
  };
  return {source("one", 1.5), source("two", -2.5)};
}

FlatParameters make_flat(const FlatOptions& options) {
  const std::vector<ParameterSource> sources = two_sources();
  return FlatParameters({&sources[0], &sources[1]}, options);
}

TEST_CASE("accelerator: parameters on the host are cast once, until they change") {
  install();
  const c10::NoGradGuard no_grad;
  const SideStream side(device());
  FlatParameters flat = make_flat({.shard = {},
                                   .replicas = {},
                                   .device = device(),
                                   .dtype = at::kFloat,
                                   .whole_dtype = at::kBFloat16,
                                   .trained = true,
                                   .gathered_for_use = true,
                                   .masters_on_host = true});
  const int64_t before = host_bytes().live;
  const auto use = [&] {
    flat.gather(side);
    const std::vector<double> sums{flat.parameters()[0].sum(at::kDouble).item<double>(),
                                   flat.parameters()[1].sum(at::kDouble).item<double>()};
    flat.release();
    return sums;
  };
  CHECK(use() == std::vector<double>{225, -375});
  // Two bytes for each of the 384 elements to which two parameters of 150 are padded.
  CHECK(host_bytes().live - before == 2 * 384);
  CHECK(flat.host_bytes() == 6 * 384);
  flat.shards()[1].values.fill_(4);
  flat.publish(side);
  CHECK(use() == std::vector<double>{225, 600});
  CHECK(host_bytes().live - before == 2 * 384);
}

TEST_CASE("accelerator: the computation waits for no sum of gradients before it is finished") {
  install();
  // By NCCL the whole buffer at once; by exchanges 12 chunks of 16 elements per rank, two in flight
  // at a time.
  for (const Link link : {Link::kNccl, Link::kNcclByExchange}) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::string> errors(2);
    const auto run = [&](int rank) {
      guard().setDevice(device(rank));
      const c10::NoGradGuard no_grad;
      const at::Device own = device(rank);
      const Group group = group_over(
          make_group(make_gloo_backend(store, rank, 2, /*timeout_seconds=*/5, "127.0.0.1"), store),
          "shard", traits_of(link));
      const SideStream side(own);
      FlatParameters flat = make_flat({.shard = group,
                                       .replicas = {},
                                       .device = own,
                                       .dtype = at::kFloat,
                                       .whole_dtype = at::kFloat,
                                       .trained = true,
                                       .scattered_at_once = true,
                                       .chunk_bytes = 2 * 16 * 4});
      flat.open_gradients();
      const at::Tensor gradient = flat.parameters()[0].grad();
      gradient.fill_(rank + 1.0);
      flat.start_reduction(side, /*is_last=*/true);
      bool was_busy = false;
      try {
        gradient.fill_(7);  // the chunks still read it, as far as this stream knows
      } catch (const FaultError&) {
        was_busy = true;
      }
      if (!was_busy) errors[rank] += "the computation has waited; ";
      flat.finish_reduction(side);
      flat.land(side);
      flat.finish_gradients();
      for (const ParameterShard& shard : flat.shards()) {
        const double expected = shard.parameter == "one" ? 3.0 : 0.0;
        if (!shard.values.grad().cpu().eq(expected).all().item<bool>()) {
          errors[rank] += "wrong sums of " + shard.parameter + "; ";
        }
      }
      group.shut_down();
    };
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        try {
          run(rank);
        } catch (const std::exception& error) {
          errors[rank] += error.what();
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    CHECK(errors[0] == "");
    CHECK(errors[1] == "");
  }
}

}  // namespace
}  // namespace longspan::testing::accelerator
