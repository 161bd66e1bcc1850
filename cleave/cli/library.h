#pragma once
#include <string>

namespace cleave::cli {

/// Loads libcleave (libtorch and all) once, from beside the program or from where it was installed,
/// and finds an extern "C" function in it. Throws Error(kIo) saying what was tried.
void* library_symbol(const char* name);

/// library_symbol for a function as its header declares it:
/// library_function<decltype(cleave_train)>
/// ("cleave_train").
template <class Function>
Function* library_function(const char* name) {
  return reinterpret_cast<Function*>(library_symbol(name));
}

/// Whether library_symbol would find it; when not, `why` says the reason.
bool has_library_symbol(const char* name, std::string* why);

}  // namespace cleave::cli
