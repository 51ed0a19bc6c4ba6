//! What a client may send that is none of ours, and who may come.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};

use backburn::check_device;
use burn::backend::{BackendTensor, DispatchDevice, DispatchTensor, DispatchTensorKind};
use burn::remote::CustomOpClient;
use burn::tensor::{DType, FloatDType};
use burn_ir::{CustomOpIr, ScalarIr, TensorIr};

use super::*;

/// The operation that updates a parameter on the server.
const UPDATE: &str = concat!("backburn::update/", env!("CARGO_PKG_VERSION"));

/// Momentum, as a client sends it: which values are the parameter and the velocity after the step, then the
/// operations, each with its operands. The first three values are parameter, gradient and velocity.
const WORDS: [u64; 32] = [
    8, 5, //
    0, 0, 0, 0, 0, // the first number
    3, 2, 3, 0, 0, // velocity * momentum
    1, 4, 1, 0, 0, // .. + gradient
    0, 1, 0, 0, 0, // the second number
    3, 5, 6, 0, 0, // velocity * learning rate
    2, 0, 7, 0, 0, // parameter - ..
];
const NUMBERS: [f64; 2] = [0.9, 0.1];

struct Call {
    /// The gradient, the parameter and its states.
    shapes: Vec<Vec<usize>>,
    dtypes: Vec<DType>,
    outputs: usize,
    scalars: Vec<ScalarIr>,
}

impl Call {
    /// A step that fits.
    fn new() -> Self {
        Self {
            shapes: vec![vec![4, 2]; 3],
            dtypes: vec![DType::F32; 3],
            outputs: 2,
            scalars: WORDS
                .map(ScalarIr::UInt)
                .into_iter()
                .chain(NUMBERS.map(ScalarIr::Float))
                .collect(),
        }
    }

    fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut call = Self::new();
        change(&mut call);
        call
    }

    /// Sends it, and returns the parameter that comes back.
    fn send(self, device: &Device) -> Result<Vec<f32>, ()> {
        let device = device.clone().inner();
        let DispatchDevice::Remote(remote) = device.as_dispatch() else {
            panic!("it is a server's");
        };
        let client = CustomOpClient::new(remote);
        let tensors = self.shapes.iter().zip(&self.dtypes);
        let inputs: Vec<TensorIr> = tensors
            .map(|(shape, dtype)| ir(shape, *dtype, &device))
            .collect();
        let output = |_| {
            let shape = [4, 2].into();
            TensorIr::uninit(client.create_empty_handle(), shape, DType::F32)
        };
        let outputs: Vec<TensorIr> = (0..self.outputs).map(output).collect();
        let call = CustomOpIr::with_scalars(UPDATE, &inputs, &outputs, self.scalars);
        let answer = AssertUnwindSafe(|| {
            let updated = client.register(call).into_iter().next();
            let updated = BackendTensor::Float(updated.expect("it has outputs"));
            let updated = Tensor::<2>::from_dispatch(DispatchTensor {
                kind: DispatchTensorKind::Remote(updated),
                autodiff: Default::default(),
            });
            updated.into_data().iter().collect()
        });
        catch_unwind(answer).map_err(drop)
    }
}

/// A tensor of ones on the server.
fn ir(shape: &[usize], dtype: DType, device: &Device) -> TensorIr {
    let options = (device, dtype);
    let kind = match shape {
        [a] => Tensor::<1>::ones([*a], options).into_dispatch().kind,
        [a, b] => Tensor::<2>::ones([*a, *b], options).into_dispatch().kind,
        _ => unreachable!("one or two dimensions"),
    };
    match kind {
        DispatchTensorKind::Remote(tensor) => tensor.float().into_ir(),
        _ => unreachable!("it is on the server"),
    }
}

#[test]
fn a_server_refuses_what_does_not_fit_and_serves_on() {
    in_time(|| {
        let server = Server::start();
        let calls = [
            Call::with(|call| call.shapes[0] = vec![4, 1]),
            Call::with(|call| call.shapes[0] = vec![8]),
            Call::with(|call| call.shapes[1] = vec![1000, 1000]),
            Call::with(|call| call.shapes[2] = vec![2, 4]),
            Call::with(|call| call.shapes[2] = vec![1]),
            Call::with(|call| call.dtypes[0] = DType::F16),
            Call::with(|call| call.dtypes[2] = DType::F64),
            Call::with(|call| call.shapes.truncate(1)),
            Call::with(|call| {
                call.shapes.truncate(2);
                call.outputs = 1;
            }),
            Call::with(|call| {
                call.shapes.push(vec![4, 2]);
                call.dtypes.push(DType::F32);
                call.outputs = 3;
            }),
            Call::with(|call| call.outputs = 1),
            Call::with(|call| call.outputs = 7),
            // No such operation, values that are not there (yet), too few words and numbers.
            Call::with(|call| call.scalars[2] = ScalarIr::UInt(9)),
            Call::with(|call| call.scalars[0] = ScalarIr::UInt(9)),
            Call::with(|call| call.scalars[9] = ScalarIr::UInt(4)),
            Call::with(|call| call.scalars[9] = ScalarIr::UInt(u64::MAX)),
            Call::with(|call| call.scalars[0] = ScalarIr::Float(3.0)),
            Call::with(|call| {
                call.scalars.remove(31);
            }),
            Call::with(|call| call.scalars.truncate(33)),
        ];
        let others = server.device_of_another();
        let expected = Call::new().send(&others).unwrap();
        for (index, call) in calls.into_iter().enumerate() {
            let hostile = server.device_of_another();
            assert_eq!(call.send(&hostile), Err(()), "call {index}");
            // Those who were there before, and those who come.
            for device in [&others, &server.device_of_another()] {
                assert_eq!(Call::new().send(device).as_ref(), Ok(&expected));
            }
        }
    });
}

#[test]
fn a_server_lets_in_whom_its_authorizer_does() {
    in_time(|| {
        let server = Server::start();
        for token in [None, Some("guessed"), Some("")] {
            assert!(server.connect_as(token).is_err());
        }
        assert!(server.connect_as(Some(TOKEN)).is_ok());
        // By itself it lets in everyone.
        let open = Server::start_as("open");
        for token in [None, Some("guessed")] {
            assert!(open.connect_as(token).is_ok());
        }
    });
}

/// As the docs say: the server does not ask which page has opened a WebSocket.
#[test]
fn a_page_from_anywhere_reaches_the_door_of_a_server() {
    in_time(|| {
        let server = Server::start();
        let mut page = TcpStream::connect(server.address()).unwrap();
        let request = format!(
            "GET /session HTTP/1.1\r\nHost: {}\r\nOrigin: https://elsewhere.example\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
            server.address()
        );
        page.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(page).read_line(&mut answer).unwrap();
        assert!(answer.contains("101"), "{answer}");
    });
}

#[test]
fn a_type_that_a_hosted_device_lacks_is_refused() {
    in_time(|| {
        let server = Server::start_as("ndarray");
        assert_eq!(check_device(&server.device, FloatDType::F32), Ok(()));
        let error = check_device(&server.device, FloatDType::BF16).unwrap_err();
        assert!(
            matches!(error, FusedError::FloatTypeNotSupported { .. }),
            "{error}"
        );
        let model = backburn::cast(Net::init(&flex()), FloatDType::BF16);
        let replicas = FusedReplicas::new(model, adamw(), [server.device.clone()]);
        let error = replicas.map(drop).unwrap_err();
        assert!(
            matches!(error, FusedError::FloatTypeNotSupported { .. }),
            "{error}"
        );
    });
}

#[test]
fn a_server_that_is_gone_is_an_error_before_training() {
    in_time(|| {
        let mut server = Server::start();
        server.kill();
        let error = check_device(&server.device, FloatDType::F32).unwrap_err();
        assert!(
            matches!(error, FusedError::DeviceNotThere { .. }),
            "{error}"
        );
    });
}
