// The only compiled copy of fmt's functions, for torch's headers of fmt; does what fmt's own
// format.cc does.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
#if FMT_VERSION >= 120000
template auto locale_ref::get<std::locale>() const -> std::locale;
#endif
namespace detail {
#if FMT_VERSION < 120000
template auto locale_ref::get<std::locale>() const -> std::locale;
template void buffer<char>::append(const char*, const char*);
#endif
template auto dragonbox::to_decimal(float x) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double x) noexcept -> dragonbox::decimal_fp<double>;
template auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;
}  // namespace detail
FMT_END_NAMESPACE
