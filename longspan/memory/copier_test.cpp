#include "longspan/memory/copier.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <stdexcept>

#include "longspan/memory/host_memory.h"

namespace longspan {
namespace {

TEST_CASE("copier: there and back, one after the other, frees what it held") {
  Copier copier(at::kCPU);
  const at::Tensor x = at::randn({300, 70});
  at::Tensor source = x.clone();
  const at::Tensor host = empty_on_host_like(source), back = at::empty_like(x);
  const Copy out = copier.start(host, source);
  const Copy in = copier.start(back, host);  // copies run in order
  in.wait();
  out.wait();
  in.wait_on_host();
  CHECK(back.equal(x));
  CHECK(source.use_count() == 1);
  CHECK_FALSE(Copy().defined());
  CHECK(in.defined());
  CHECK_THROWS(copier.start(back, host.narrow(0, 0, 3)));
  CHECK_THROWS(copier.start(back.t(), host.t()));
}

TEST_CASE("worker: errors reach who waits, others are done, the end waits") {
  int done = 0;
  {
    Worker worker;
    const Copy bad = worker.run([] { throw std::runtime_error("disk"); });
    const Copy good = worker.run([&done] { ++done; });
    CHECK_THROWS_WITH(bad.wait(), "disk");
    CHECK_THROWS_WITH(bad.wait(), "disk");
    good.wait();
    CHECK(done == 1);
    for (int i = 0; i < 10; ++i) worker.run([&done] { ++done; });
  }
  CHECK(done == 11);
}

}  // namespace
}  // namespace longspan
