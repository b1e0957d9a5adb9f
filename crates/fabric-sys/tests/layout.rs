//! Compares our declarations with the installed libfabric headers, by compiling a C program against them.
//!
//! Without headers or a C compiler, only sizes that were written down are checked.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::process::Command;

use isthmus_fabric_sys::*;

/// Sizes from 1.17 to 2.6; what grew over time is checked at its newest size.
#[test]
fn sizes_are_those_that_were_measured() {
    let sizes = [
        ("fi_info", size_of::<fi_info>(), 120),
        ("fi_tx_attr", size_of::<fi_tx_attr>(), 80),
        ("fi_rx_attr", size_of::<fi_rx_attr>(), 64),
        ("fi_ep_attr", size_of::<fi_ep_attr>(), 96),
        ("fi_domain_attr", size_of::<fi_domain_attr>(), 224),
        ("fi_fabric_attr", size_of::<fi_fabric_attr>(), 32),
        ("fi_provider", size_of::<fi_provider>(), 72),
        ("fi_context", size_of::<fi_context>(), 32),
        ("fi_cq_tagged_entry", size_of::<fi_cq_tagged_entry>(), 48),
        ("fi_cq_err_entry", size_of::<fi_cq_err_entry>(), 88),
        ("fi_cq_attr", size_of::<fi_cq_attr>(), 40),
        ("fi_cntr_attr", size_of::<fi_cntr_attr>(), 24),
        ("fi_av_attr", size_of::<fi_av_attr>(), 48),
        ("fi_mr_attr", size_of::<fi_mr_attr>(), 80),
        ("fid_fabric", size_of::<fid_fabric>(), 40),
        ("fid_domain", size_of::<fid_domain>(), 40),
        ("fid_ep", size_of::<fid_ep>(), 80),
        ("fid_av", size_of::<fid_av>(), 32),
        ("fid_cq", size_of::<fid_cq>(), 32),
        ("fid_cntr", size_of::<fid_cntr>(), 32),
        ("fid_mr", size_of::<fid_mr>(), 40),
        ("fid_eq", size_of::<fid_eq>(), 32),
        ("fi_ops", size_of::<fi_ops>(), 56),
        ("fi_ops_fabric", size_of::<fi_ops_fabric>(), 56),
        ("fi_ops_domain", size_of::<fi_ops_domain>(), 96),
        ("fi_ops_ep", size_of::<fi_ops_ep>(), 64),
        ("fi_ops_cq", size_of::<fi_ops_cq>(), 64),
        ("fi_ops_cntr", size_of::<fi_ops_cntr>(), 64),
        ("fi_ops_mr", size_of::<fi_ops_mr>(), 32),
        ("fi_ops_cm", size_of::<fi_ops_cm>(), 80),
        ("fi_ops_msg", size_of::<fi_ops_msg>(), 80),
        ("fi_ops_tagged", size_of::<fi_ops_tagged>(), 80),
        ("fi_ops_rma", size_of::<fi_ops_rma>(), 80),
        ("fi_ops_atomic", size_of::<fi_ops_atomic>(), 112),
        ("fi_ops_eq", size_of::<fi_ops_eq>(), 48),
        ("fi_ops_av", size_of::<fi_ops_av>(), 88),
    ];
    for (name, found, expected) in sizes {
        assert_eq!(found, expected, "size of {name}");
    }
}

/// A C expression and the value that it must have.
struct Fact {
    expression: String,
    value: u64,
}

/// Offsets of the named fields; `field = c_name` where C's name is a keyword of Rust.
macro_rules! offsets {
    ($facts:ident: $($name:ident { $($field:ident $(= $c:ident)?),* $(,)? })*) => {$($(
        #[allow(unused_mut, unused_assignments)]
        {
            let mut c = stringify!($field);
            $(c = stringify!($c);)?
            $facts.push(Fact {
                expression: format!("offsetof(struct {}, {c})", stringify!($name)),
                value: offset_of!($name, $field) as u64,
            });
        }
    )*)*};
}

macro_rules! sizes {
    ($facts:ident: $($name:ident),* $(,)?) => {$(
        $facts.push(Fact { expression: format!("sizeof(struct {})", stringify!($name)), value: size_of::<$name>() as u64 });
    )*};
}

macro_rules! constants {
    ($facts:ident: $($name:ident),* $(,)?) => {$(
        #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, clippy::cast_lossless)]
        $facts.push(Fact { expression: stringify!($name).to_owned(), value: $name as u64 });
    )*};
}

fn facts() -> Vec<Fact> {
    let mut facts = Vec::new();
    // What grew since 1.17 (fi_domain_attr, fi_cq_err_entry, fi_ops_av, fi_mr_attr) is compared by offset only.
    sizes!(facts: fi_info, fi_tx_attr, fi_rx_attr, fi_ep_attr, fi_fabric_attr, fi_provider, fi_context, fi_ioc,
        iovec, fi_cq_entry, fi_cq_msg_entry, fi_cq_data_entry, fi_cq_tagged_entry, fi_cq_attr, fi_cntr_attr,
        fi_av_attr, fi_eq_attr, fi_eq_entry, fi_eq_err_entry, fi_msg, fi_msg_tagged, fi_msg_rma, fi_msg_atomic,
        fi_rma_iov, fi_rma_ioc, fi_atomic_attr, fid, fid_fabric, fid_domain, fid_ep, fid_av, fid_cq, fid_cntr,
        fid_mr, fid_eq, fi_ops, fi_ops_fabric, fi_ops_domain, fi_ops_ep, fi_ops_cq, fi_ops_cntr, fi_ops_mr,
        fi_ops_cm, fi_ops_msg, fi_ops_tagged, fi_ops_rma, fi_ops_atomic, fi_ops_eq);
    offsets!(facts:
        fi_info { next, caps, mode, addr_format, src_addrlen, dest_addrlen, src_addr, dest_addr, handle, tx_attr,
            rx_attr, ep_attr, domain_attr, fabric_attr, nic }
        fi_tx_attr { caps, mode, op_flags, msg_order, comp_order, inject_size, size, iov_limit, rma_iov_limit,
            tclass }
        fi_rx_attr { caps, mode, op_flags, msg_order, comp_order, total_buffered_recv, size, iov_limit }
        fi_ep_attr { ep_type = type, protocol, protocol_version, max_msg_size, msg_prefix_size,
            max_order_raw_size, max_order_war_size, max_order_waw_size, mem_tag_format, tx_ctx_cnt, rx_ctx_cnt,
            auth_key_size, auth_key }
        fi_domain_attr { domain, name, threading, control_progress, data_progress, resource_mgmt, av_type,
            mr_mode, mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt, max_ep_tx_ctx,
            max_ep_rx_ctx, max_ep_stx_ctx, max_ep_srx_ctx, cntr_cnt, mr_iov_limit, caps, mode, auth_key,
            auth_key_size, max_err_data, mr_cnt, tclass }
        fi_fabric_attr { fabric, name, prov_name, prov_version, api_version }
        fi_provider { version, fi_version, context, name, getinfo, fabric, cleanup }
        fid { fclass, context, ops }
        fi_ops { size, close, bind, control, ops_open, tostr, ops_set }
        fid_fabric { ops, api_version }
        fi_ops_fabric { domain, passive_ep, eq_open, wait_open, trywait, domain2 }
        fid_domain { ops, mr }
        fi_ops_domain { av_open, cq_open, endpoint, scalable_ep, cntr_open, poll_open, stx_ctx, srx_ctx,
            query_atomic, query_collective, endpoint2 }
        fi_ops_mr { reg, regv, regattr }
        fi_ops_av { insert, insertsvc, insertsym, remove, lookup, straddr, av_set }
        fi_av_attr { av_type = type, rx_ctx_bits, count, ep_per_node, name, map_addr, flags }
        fid_mr { mem_desc, key }
        fi_mr_attr { mr_iov, iov_count, access, offset, requested_key, context, auth_key_size, auth_key, iface,
            device }
        fid_ep { ops, cm, msg, rma, tagged, atomic, collective }
        fi_ops_ep { cancel, getopt, setopt, tx_ctx, rx_ctx, rx_size_left, tx_size_left }
        fi_ops_cm { setname, getname, getpeer, connect, listen, accept, reject, shutdown, join }
        fi_ops_msg { recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata }
        fi_ops_tagged { recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata }
        fi_ops_rma { read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata }
        fi_ops_atomic { write, writev, writemsg, inject, readwrite, readwritev, readwritemsg, compwrite,
            compwritev, compwritemsg, writevalid, readwritevalid, compwritevalid }
        fi_msg { msg_iov, desc, iov_count, addr, context, data }
        fi_msg_tagged { msg_iov, desc, iov_count, addr, tag, ignore, context, data }
        fi_msg_rma { msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, context, data }
        fi_msg_atomic { msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, datatype, op, context, data }
        fi_rma_iov { addr, len, key }
        fi_rma_ioc { addr, count, key }
        fi_ioc { addr, count }
        fi_eq_attr { size, flags, wait_obj, signaling_vector, wait_set }
        fi_eq_entry { fid, context, data }
        fi_eq_err_entry { fid, context, data, err, prov_errno, err_data, err_data_size }
        fi_ops_eq { read, readerr, write, sread, strerror }
        fi_ops_cq { read, readfrom, readerr, sread, sreadfrom, signal, strerror }
        fi_ops_cntr { read, readerr, add, set, wait, adderr, seterr }
        fi_cq_attr { size, flags, format, wait_obj, signaling_vector, wait_cond, wait_set }
        fi_cntr_attr { events, wait_obj, wait_set, flags }
        fi_cq_tagged_entry { op_context, flags, len, buf, data, tag }
        fi_cq_err_entry { op_context, flags, len, buf, data, tag, olen, err, prov_errno, err_data, err_data_size }
    );
    constants!(facts: FI_PROV_SPECIFIC, FI_MSG, FI_RMA, FI_TAGGED, FI_ATOMIC, FI_MULTICAST, FI_COLLECTIVE, FI_READ,
        FI_WRITE, FI_RECV, FI_SEND, FI_TRANSMIT, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_MULTI_RECV,
        FI_REMOTE_CQ_DATA, FI_MORE, FI_PEEK, FI_TRIGGER, FI_FENCE, FI_PRIORITY, FI_COMPLETION, FI_INJECT,
        FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE, FI_AFFINITY, FI_COMMIT_COMPLETE,
        FI_MATCH_COMPLETE, FI_HMEM, FI_LOCAL_COMM, FI_REMOTE_COMM, FI_SHARED_AV, FI_PROV_ATTR_ONLY,
        FI_NUMERICHOST, FI_RMA_EVENT, FI_SOURCE, FI_NAMED_RX_CTX, FI_DIRECTED_RECV, FI_CLAIM, FI_DISCARD,
        FI_SELECTIVE_COMPLETION, FI_CONTEXT, FI_MSG_PREFIX, FI_ASYNC_IOV, FI_RX_CQ_DATA, FI_LOCAL_MR,
        FI_CONTEXT2, FI_FORMAT_UNSPEC, FI_ADDR_UNSPEC, FI_ADDR_NOTAVAIL, FI_SHARED_CONTEXT, FI_AV_UNSPEC,
        FI_AV_MAP, FI_AV_TABLE, FI_MR_UNSPEC, FI_MR_BASIC, FI_MR_SCALABLE, FI_MR_LOCAL, FI_MR_RAW,
        FI_MR_VIRT_ADDR, FI_MR_ALLOCATED, FI_MR_PROV_KEY, FI_MR_MMU_NOTIFY, FI_MR_RMA_EVENT, FI_MR_ENDPOINT,
        FI_MR_HMEM, FI_PROGRESS_UNSPEC, FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL, FI_THREAD_UNSPEC, FI_THREAD_SAFE,
        FI_THREAD_FID, FI_THREAD_DOMAIN, FI_THREAD_COMPLETION, FI_THREAD_ENDPOINT, FI_RM_UNSPEC, FI_RM_DISABLED,
        FI_RM_ENABLED, FI_ORDER_RAR, FI_ORDER_RAW, FI_ORDER_RAS, FI_ORDER_WAR, FI_ORDER_WAW, FI_ORDER_WAS,
        FI_ORDER_SAR, FI_ORDER_SAW, FI_ORDER_SAS, FI_ORDER_RMA_RAR, FI_ORDER_RMA_RAW, FI_ORDER_RMA_WAR,
        FI_ORDER_RMA_WAW, FI_ORDER_ATOMIC_RAR, FI_ORDER_ATOMIC_RAW, FI_ORDER_ATOMIC_WAR, FI_ORDER_ATOMIC_WAW,
        FI_EP_UNSPEC, FI_EP_MSG, FI_EP_DGRAM, FI_EP_RDM, FI_PROTO_UNSPEC, FI_TC_UNSPEC, FI_CLASS_UNSPEC,
        FI_CLASS_FABRIC, FI_CLASS_DOMAIN, FI_CLASS_EP, FI_CLASS_AV, FI_CLASS_MR, FI_CLASS_EQ, FI_CLASS_CQ,
        FI_CLASS_CNTR, FI_GETFIDFLAG, FI_SETFIDFLAG, FI_GETOPSFLAG, FI_SETOPSFLAG, FI_ALIAS, FI_GETWAIT,
        FI_ENABLE, FI_REFRESH, FI_GETWAITOBJ, FI_PARAM_STRING, FI_PARAM_INT, FI_PARAM_BOOL, FI_PARAM_SIZE_T,
        FI_SYNC_ERR, FI_HMEM_SYSTEM, FI_INT8, FI_UINT8, FI_INT16, FI_UINT16, FI_INT32, FI_UINT32, FI_INT64,
        FI_UINT64, FI_FLOAT, FI_DOUBLE, FI_FLOAT_COMPLEX, FI_DOUBLE_COMPLEX, FI_LONG_DOUBLE,
        FI_LONG_DOUBLE_COMPLEX, FI_DATATYPE_LAST, FI_MIN, FI_MAX, FI_SUM, FI_PROD, FI_LOR, FI_LAND, FI_BOR,
        FI_BAND, FI_LXOR, FI_BXOR, FI_ATOMIC_READ, FI_ATOMIC_WRITE, FI_CSWAP, FI_CSWAP_NE, FI_CSWAP_LE,
        FI_CSWAP_LT, FI_CSWAP_GE, FI_CSWAP_GT, FI_MSWAP, FI_ATOMIC_OP_LAST, FI_FETCH_ATOMIC, FI_COMPARE_ATOMIC,
        FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, FI_OPT_CM_DATA_SIZE, FI_OPT_BUFFERED_MIN, FI_OPT_BUFFERED_LIMIT,
        FI_OPT_TX_SIZE, FI_OPT_RX_SIZE, FI_OPT_FI_HMEM_P2P, FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_SET,
        FI_WAIT_FD, FI_WAIT_MUTEX_COND, FI_WAIT_YIELD, FI_WAIT_POLLFD, FI_CQ_FORMAT_UNSPEC,
        FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_DATA, FI_CQ_FORMAT_TAGGED, FI_CQ_COND_NONE,
        FI_CQ_COND_THRESHOLD, FI_CNTR_EVENTS_COMP, FI_EPERM, FI_ENOENT, FI_EINTR, FI_EIO, FI_EAGAIN, FI_ENOMEM,
        FI_EACCES, FI_EFAULT, FI_EBUSY, FI_ENODEV, FI_EINVAL, FI_ENOSPC, FI_ENOSYS, FI_ENOMSG, FI_ENODATA,
        FI_EMSGSIZE, FI_ENOPROTOOPT, FI_EOPNOTSUPP, FI_EADDRINUSE, FI_EADDRNOTAVAIL, FI_ECONNRESET, FI_ETIMEDOUT,
        FI_EHOSTUNREACH, FI_ECANCELED, FI_EOTHER, FI_ETOOSMALL, FI_EOPBADSTATE, FI_EAVAIL, FI_EBADFLAGS,
        FI_ENOEQ, FI_EDOMAIN, FI_ENOCQ, FI_ETRUNC, FI_ENOKEY, FI_ENOAV, FI_EOVERRUN, FI_LOG_CORE, FI_LOG_FABRIC,
        FI_LOG_DOMAIN, FI_LOG_EP_CTRL, FI_LOG_EP_DATA, FI_LOG_AV, FI_LOG_CQ, FI_LOG_EQ, FI_LOG_MR, FI_LOG_CNTR,
        FI_LOG_WARN, FI_LOG_TRACE, FI_LOG_INFO, FI_LOG_DEBUG);
    facts
}

const INCLUDES: &str = "\
#include <stddef.h>
#include <stdio.h>
#include <sys/uio.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>
";

#[test]
fn declarations_agree_with_the_installed_headers() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("facts.c");
    let program = folder.path().join("facts");
    let compile = |text: &str| {
        std::fs::write(&source, text).unwrap();
        Command::new("cc").arg("-w").arg("-o").arg(&program).arg(&source).output()
    };
    let missing = match compile(&format!("{INCLUDES}int main(void) {{ return 0; }}\n")) {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            Some(String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned())
        }
        Err(e) => Some(format!("cannot run cc: {e}")),
    };
    if let Some(missing) = missing {
        // A machine that only builds may lack them; one that tests every change has what scripts/install-deps installs.
        let must = std::env::var_os("CI").is_some_and(|v| !v.is_empty());
        assert!(!must, "needs a C compiler and libfabric's headers (Debian: libfabric-dev): {missing}");
        // Written past the test harness, which hides a passing test's output and has already begun the line.
        let line =
            format!("\nskipped: fabric-sys/tests/layout: no C compiler or libfabric headers: {missing}\n");
        std::io::Write::write_all(&mut std::io::stdout(), line.as_bytes()).unwrap();
        return;
    }
    let facts = facts();
    let mut text = format!("{INCLUDES}int main(void) {{\n");
    for (i, fact) in facts.iter().enumerate() {
        writeln!(text, "printf(\"%d %llu\\n\", {i}, (unsigned long long)({}));", fact.expression).unwrap();
    }
    text.push_str("return 0; }\n");
    let output = compile(&text).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = Command::new(&program).output().unwrap();
    let values: HashMap<usize, u64> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| {
            let (i, value) = line.split_once(' ').unwrap();
            (i.parse().unwrap(), value.parse().unwrap())
        })
        .collect();
    assert_eq!(values.len(), facts.len());
    let wrong: Vec<String> = facts
        .iter()
        .enumerate()
        .filter(|(i, fact)| values[i] != fact.value)
        .map(|(i, fact)| format!("{}: headers {}, ours {}", fact.expression, values[&i], fact.value))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
