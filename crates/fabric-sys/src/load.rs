//! Asking an installed libfabric what it offers. It is opened at run time, so that nothing is linked.
//!
//! For tools alone. A library that is loaded runs its own code in this process: call this in a process that may die of it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use crate::fabric::fi_info;

/// How many offers are read at most.
const MOST: usize = 256;

/// What a libfabric answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its version, major and minor.
    pub version: (u32, u32),
    /// Providers that offer something, each once: name and version.
    pub providers: Vec<(String, (u32, u32))>,
    /// What `fi_getinfo` returned: 0, or a negative error number.
    pub status: i32,
}

type Version = unsafe extern "C" fn() -> u32;
type GetInfo =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int;
type FreeInfo = unsafe extern "C" fn(*mut fi_info);

/// Major and minor of libfabric's version numbers.
fn split(version: u32) -> (u32, u32) {
    (version >> 16, version & 0xffff)
}

/// Loads the libfabric at `path` and asks it for everything that it offers. The environment (`FI_PROVIDER` and the
/// like) decides what that can be. The library stays loaded.
///
/// # Errors
/// What the loader says.
pub fn ask(path: &Path) -> Result<Answer, String> {
    use std::os::unix::ffi::OsStrExt;
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
    // SAFETY: a string that ends in zero; what the library's constructors do is the caller's risk, as documented.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err(loader_error());
    }
    let version = symbol(library, c"fi_version")?;
    // SAFETY: libfabric declares fi_version so.
    let version = unsafe { std::mem::transmute::<*mut c_void, Version>(version) };
    let getinfo = symbol(library, c"fi_getinfo")?;
    // SAFETY: libfabric declares fi_getinfo so.
    let getinfo = unsafe { std::mem::transmute::<*mut c_void, GetInfo>(getinfo) };
    let freeinfo = symbol(library, c"fi_freeinfo")?;
    // SAFETY: libfabric declares fi_freeinfo so.
    let freeinfo = unsafe { std::mem::transmute::<*mut c_void, FreeInfo>(freeinfo) };
    // SAFETY: libfabric declares that fi_version takes no arguments, and any thread may call it.
    let version = unsafe { version() };
    let mut list: *mut fi_info = ptr::null_mut();
    // SAFETY: no hints, no names, and a place for the list; as fi_getinfo(3) allows.
    let status = unsafe { getinfo(version, ptr::null(), ptr::null(), 0, ptr::null(), &raw mut list) };
    let mut providers = Vec::new();
    let mut next = if status == 0 { list } else { ptr::null_mut() };
    for _ in 0..MOST {
        // SAFETY: null, or an entry of the list, which is freed below.
        let Some(info) = (unsafe { next.as_ref() }) else { break };
        // SAFETY: null, or the entry's attributes, which live as long as the entry.
        if let Some(fabric) = unsafe { info.fabric_attr.as_ref() }
            && !fabric.prov_name.is_null()
        {
            // SAFETY: a provider's name ends in zero.
            let name = unsafe { CStr::from_ptr(fabric.prov_name) }.to_string_lossy().into_owned();
            let found = (name, split(fabric.prov_version));
            if !providers.contains(&found) {
                providers.push(found);
            }
        }
        next = info.next;
    }
    if status == 0 && !list.is_null() {
        // SAFETY: the list of the call above, to which no reference is left.
        unsafe { freeinfo(list) };
    }
    Ok(Answer { version: split(version), providers, status })
}

fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: a library that is loaded, and a string that ends in zero.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() { Err(loader_error()) } else { Ok(found) }
}

fn loader_error() -> String {
    // SAFETY: dlerror takes no arguments; the text lives until the next call of the loader in this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader does not say why".into();
    }
    // SAFETY: not null, and the loader's texts end in a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_libfabric_is_an_error() {
        assert!(ask(Path::new("/nowhere/libfabric.so.1")).unwrap_err().contains("/nowhere"));
        assert!(ask(Path::new("libc.so.6")).unwrap_err().contains("fi_version"));
    }
}
