#include "longspan/kernels/cpu_rows.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "longspan/cpu/vector_math.h"
#include "longspan/kernels/storage_type.h"

namespace longspan::cpu_rows {
namespace {

namespace vm = vector_math;

/// Rows of a task, enough to be worth its start.
int64_t grain(int64_t row_length) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(row_length, 1));
}

/// A row of n numbers in arithmetic precision: the memory itself where the storage has it, else a
/// converted copy.
template <typename S>
class ConvertedRow {
 public:
  using A = Arithmetic<S>;
  explicit ConvertedRow(int64_t n) : scratch_(kConverts ? n : 0), n_(n) {}
  const A* load(const S* data) {
    if constexpr (kConverts) {
      vm::convert(scratch_.data(), data, n_);
      return scratch_.data();
    } else {
      return data;
    }
  }
  /// Returns the memory to write to. Call store() after that.
  A* target(S* data) {
    if constexpr (kConverts) {
      return scratch_.data();
    } else {
      return data;
    }
  }
  A* load_target(S* data) {
    load(data);
    return target(data);
  }
  void store(S* data) {
    if constexpr (kConverts) vm::convert(data, scratch_.data(), n_);
  }

 private:
  static constexpr bool kConverts = !std::is_same_v<S, A>;
  std::vector<A> scratch_;
  int64_t n_;
};

}  // namespace

at::Tensor reciprocal_rms(const at::Tensor& h_TD, double eps) {
  const int64_t T = h_TD.size(0), D = h_TD.size(1);
  const auto h = h_TD.contiguous();
  auto rstd_T = at::empty({T}, h.options().dtype(arithmetic_dtype(h.scalar_type())));
  with_type(h.scalar_type(), [&](auto storage) {
    using S = decltype(storage);
    using A = Arithmetic<S>;
    const S* in = h.const_data_ptr<S>();
    A* out = rstd_T.mutable_data_ptr<A>();
    at::parallel_for(0, T, grain(D), [&](int64_t begin, int64_t end) {
      ConvertedRow<S> row(D);
      for (int64_t t = begin; t < end; ++t) {
        const A mean = vm::sum_of_squares(row.load(in + t * D), D) / static_cast<A>(D);
        out[t] = 1 / std::sqrt(mean + static_cast<A>(eps));
      }
    });
  });
  return rstd_T;
}

at::Tensor scale_rows(const at::Tensor& h_TD, const at::Tensor& rstd_T, const at::Tensor& weight_D,
                      at::ScalarType dtype) {
  const int64_t T = h_TD.size(0), D = h_TD.size(1);
  const auto h = h_TD.contiguous(), weight = weight_D.to(rstd_T.scalar_type()).contiguous();
  auto y_TD = at::empty({T, D}, h.options().dtype(dtype));
  with_type(h.scalar_type(), [&](auto storage) {
    using S = decltype(storage);
    using A = Arithmetic<S>;
    with_type(dtype, [&](auto out_storage) {
      using O = decltype(out_storage);
      if constexpr (std::is_same_v<A, Arithmetic<O>>) {
        const S* in = h.const_data_ptr<S>();
        const A* rstd = rstd_T.const_data_ptr<A>();
        const A* w = weight.template const_data_ptr<A>();
        O* out = y_TD.mutable_data_ptr<O>();
        at::parallel_for(0, T, grain(D), [&](int64_t begin, int64_t end) {
          ConvertedRow<S> in_row(D);
          ConvertedRow<O> out_row(D);
          for (int64_t t = begin; t < end; ++t) {
            vm::scale(out_row.target(out + t * D), in_row.load(in + t * D), w, rstd[t], D);
            out_row.store(out + t * D);
          }
        });
      } else {
        TORCH_CHECK(false, "fp64 does not mix with other dtypes");
      }
    });
  });
  return y_TD;
}

void norm_backward_out(at::Tensor& dh_TD, const at::Tensor& dy_TD, const at::Tensor& h_TD,
                       const at::Tensor& rstd_T, const at::Tensor& weight_D,
                       const at::Tensor& residual_TD, const at::Tensor& dweight_D) {
  TORCH_CHECK(dh_TD.is_contiguous() && dh_TD.scalar_type() == h_TD.scalar_type());
  const int64_t T = h_TD.size(0), D = h_TD.size(1);
  const auto dy = dy_TD.contiguous(), h = h_TD.contiguous();
  const auto weight = weight_D.to(rstd_T.scalar_type()).contiguous();
  const auto residual = residual_TD.defined() ? residual_TD.contiguous() : residual_TD;
  // Each slab of rows sums its own weight gradient, so the result does not depend on the number of
  // threads.
  constexpr int64_t kNumSlabs = 16;
  const int64_t slab_rows = (T + kNumSlabs - 1) / kNumSlabs;
  const auto dweight_SD = at::zeros({kNumSlabs, D}, rstd_T.options());
  with_type(h.scalar_type(), [&](auto storage) {
    using S = decltype(storage);
    using A = Arithmetic<S>;
    with_type(dy.scalar_type(), [&](auto dy_storage) {
      using Y = decltype(dy_storage);
      if constexpr (std::is_same_v<A, Arithmetic<Y>>) {
        const Y* dy_data = dy.template const_data_ptr<Y>();
        const S* h_data = h.const_data_ptr<S>();
        const S* residual_data = residual.defined() ? residual.const_data_ptr<S>() : nullptr;
        const A* rstd = rstd_T.const_data_ptr<A>();
        const A* w = weight.template const_data_ptr<A>();
        S* dh_data = dh_TD.mutable_data_ptr<S>();
        A* dweight_data = dweight_SD.mutable_data_ptr<A>();
        at::parallel_for(0, kNumSlabs, 1, [&](int64_t slab_begin, int64_t slab_end) {
          ConvertedRow<Y> dy_row(D);
          ConvertedRow<S> h_row(D), residual_row(D), dh_row(D);
          for (int64_t slab = slab_begin; slab < slab_end; ++slab) {
            for (int64_t t = slab * slab_rows; t < std::min(T, (slab + 1) * slab_rows); ++t) {
              const A* dy_t = dy_row.load(dy_data + t * D);
              const A* h_t = h_row.load(h_data + t * D);
              const A* residual_t =
                  residual_data ? residual_row.load(residual_data + t * D) : nullptr;
              // y = w h r with r = (mean h^2 + eps)^(-1/2):
              // dh = r (w dy) - h r^3 mean(w dy h).
              const A factor = rstd[t] * rstd[t] * rstd[t] * vm::triple_product(dy_t, w, h_t, D) /
                               static_cast<A>(D);
              vm::norm_gradient(dh_row.target(dh_data + t * D), dy_t, w, h_t, residual_t, rstd[t],
                                factor, D);
              dh_row.store(dh_data + t * D);
              if (dweight_D.defined()) {
                vm::add_scaled_product(dweight_data + slab * D, dy_t, h_t, rstd[t], D);
              }
            }
          }
        });
      } else {
        TORCH_CHECK(false, "fp64 does not mix with other dtypes");
      }
    });
  });
  if (dweight_D.defined()) dweight_D.add_(dweight_SD.sum(0));
}

void rotate_(at::Tensor& x_TNH, const RotaryTable& table, bool inverse) {
  TORCH_CHECK(x_TNH.is_contiguous(), "rotate_ wants contiguous heads");
  const int64_t T = x_TNH.size(0), N = x_TNH.size(1), H = x_TNH.size(2), F = table.cos_TF.size(1);
  with_type(x_TNH.scalar_type(), [&](auto storage) {
    using S = decltype(storage);
    using A = Arithmetic<S>;
    S* data = x_TNH.mutable_data_ptr<S>();
    const A* cos = table.cos_TF.const_data_ptr<A>();
    const A* sin = table.sin_TF.const_data_ptr<A>();
    const A sign = inverse ? A{-1} : A{1};
    at::parallel_for(0, T, grain(N * H), [&](int64_t begin, int64_t end) {
      ConvertedRow<S> row(N * H);
      for (int64_t t = begin; t < end; ++t) {
        A* heads = row.load_target(data + t * N * H);
        for (int64_t n = 0; n < N; ++n) {
          A* const head = heads + n * H;
          switch (table.pairs) {
            case RotaryPairs::kHalves:
              vm::rotate(head, head, cos + t * F, sin + t * F, sign, F);
              break;
            case RotaryPairs::kNeighbours:
              vm::rotate_neighbours(head, head, cos + t * F, sin + t * F, sign, F);
              break;
          }
        }
        row.store(data + t * N * H);
      }
    });
  });
}

namespace {

/// Writes f(gate, up) for each row.
template <typename F>
void gated_out(at::Tensor& out_TI, const at::Tensor& gate_TI, const at::Tensor& up_TI, F&& f) {
  const int64_t T = gate_TI.size(0), I = gate_TI.size(1);
  TORCH_CHECK(gate_TI.is_contiguous() && up_TI.is_contiguous() && out_TI.is_contiguous());
  with_type(gate_TI.scalar_type(), [&](auto storage) {
    using S = decltype(storage);
    const S* gate = gate_TI.const_data_ptr<S>();
    const S* up = up_TI.const_data_ptr<S>();
    S* out = out_TI.mutable_data_ptr<S>();
    at::parallel_for(0, T, grain(I), [&](int64_t begin, int64_t end) {
      ConvertedRow<S> gate_row(I), up_row(I), out_row(I);
      for (int64_t t = begin; t < end; ++t) {
        f(out_row.target(out + t * I), gate_row.load(gate + t * I), up_row.load(up + t * I), I);
        out_row.store(out + t * I);
      }
    });
  });
}

template <typename F>
void gated_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI, F&& f) {
  const int64_t T = gate_TI.size(0), I = gate_TI.size(1);
  TORCH_CHECK(gate_TI.is_contiguous() && up_TI.is_contiguous() && dact_TI.is_contiguous());
  with_type(gate_TI.scalar_type(), [&](auto storage) {
    using S = decltype(storage);
    S* gate = gate_TI.mutable_data_ptr<S>();
    S* up = up_TI.mutable_data_ptr<S>();
    S* dact = dact_TI.mutable_data_ptr<S>();
    at::parallel_for(0, T, grain(I), [&](int64_t begin, int64_t end) {
      ConvertedRow<S> gate_row(I), up_row(I), dact_row(I);
      for (int64_t t = begin; t < end; ++t) {
        f(gate_row.load_target(gate + t * I), up_row.load_target(up + t * I),
          dact_row.load_target(dact + t * I), I);
        gate_row.store(gate + t * I);
        up_row.store(up + t * I);
        dact_row.store(dact + t * I);
      }
    });
  });
}

}  // namespace

void swiglu_out(at::Tensor& out_TI, const at::Tensor& gate_TI, const at::Tensor& up_TI) {
  gated_out(out_TI, gate_TI, up_TI, [](auto* out, const auto* gate, const auto* up, int64_t n) {
    vm::swiglu(out, gate, up, n);
  });
}

void swiglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI) {
  gated_backward_(gate_TI, up_TI, dact_TI, [](auto* gate, auto* up, auto* dact, int64_t n) {
    vm::swiglu_backward(gate, up, dact, n);
  });
}

void geglu_out(at::Tensor& out_TI, const at::Tensor& gate_TI, const at::Tensor& up_TI) {
  gated_out(out_TI, gate_TI, up_TI, [](auto* out, const auto* gate, const auto* up, int64_t n) {
    vm::geglu(out, gate, up, n);
  });
}

void geglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI) {
  gated_backward_(gate_TI, up_TI, dact_TI, [](auto* gate, auto* up, auto* dact, int64_t n) {
    vm::geglu_backward(gate, up, dact, n);
  });
}

void clamped_swiglu_out(at::Tensor& out_TI, const at::Tensor& gate_TI, const at::Tensor& up_TI,
                        double slope, double limit) {
  gated_out(out_TI, gate_TI, up_TI, [&]<typename A>(A* out, const A* gate, const A* up, int64_t n) {
    vm::clamped_swiglu(out, gate, up, static_cast<A>(slope), static_cast<A>(limit), n);
  });
}

void clamped_swiglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI,
                              double slope, double limit) {
  gated_backward_(gate_TI, up_TI, dact_TI, [&]<typename A>(A* gate, A* up, A* dact, int64_t n) {
    vm::clamped_swiglu_backward(gate, up, dact, static_cast<A>(slope), static_cast<A>(limit), n);
  });
}

void log_sum_exp_rows(const at::Tensor& logits_TV, const at::Tensor& labels_T, at::Tensor lse_T,
                      at::Tensor picked_T) {
  const int64_t T = logits_TV.size(0), V = logits_TV.size(1);
  TORCH_CHECK(logits_TV.is_contiguous());
  const int64_t* label = labels_T.const_data_ptr<int64_t>();
  const auto run = [&](auto storage) {
    using A = decltype(storage);
    const A* logits = logits_TV.const_data_ptr<A>();
    double* lse = lse_T.mutable_data_ptr<double>();
    double* picked = picked_T.mutable_data_ptr<double>();
    at::parallel_for(0, T, grain(V), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const A largest = vm::max(logits + t * V, V);
        const double sum = vm::sum_exp(logits + t * V, largest, V);
        lse[t] = static_cast<double>(largest) + std::log(sum);
        picked[t] = logits[t * V + label[t]];
      }
    });
  };
  logits_TV.scalar_type() == at::kDouble ? run(double{}) : run(float{});
}

void cross_entropy_gradient_(at::Tensor& logits_TV, const at::Tensor& labels_T,
                             const at::Tensor& lse_T, const at::Tensor& scale_T) {
  const int64_t T = logits_TV.size(0), V = logits_TV.size(1);
  TORCH_CHECK(logits_TV.is_contiguous() && scale_T.is_contiguous());
  const int64_t* label = labels_T.const_data_ptr<int64_t>();
  const auto run = [&](auto storage) {
    using A = decltype(storage);
    A* logits = logits_TV.mutable_data_ptr<A>();
    const double* lse = lse_T.const_data_ptr<double>();
    const A* scale = scale_T.const_data_ptr<A>();
    at::parallel_for(0, T, grain(V), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        // `rest` corrects the rounding of the log-sum-exp.
        const A rounded = static_cast<A>(lse[t]);
        const double rest = std::exp(static_cast<double>(rounded) - lse[t]);
        vm::scaled_exp(logits + t * V, rounded, static_cast<A>(scale[t] * rest), V);
        logits[t * V + label[t]] -= scale[t];
      }
    });
  };
  logits_TV.scalar_type() == at::kDouble ? run(double{}) : run(float{});
}

}  // namespace longspan::cpu_rows
